"""Copies one topic into another inside transactions until it is killed: `python -m tests.histories.copier …`.

The classic loop of exactly once: read, write, commit the positions read in the same transaction. Everything is written down as it
happens. An error that aborts the transaction rewinds to the committed positions; a fatal one (fenced, say) ends the process,
and whoever started it starts the next.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.histories.recorder import Recorder

BATCH = 10
POLL_S = 0.2
LIMIT_S = 20.0
# librdkafka 2.16 may never come back from send_offsets_to_transaction, whatever limit it was given, once the group's coordinator
# was missing from the metadata for a moment (its issue 5511; Apache Kafka alone shows it too). Such a life is at its end.
STUCK_S = 2 * LIMIT_S


class Copier:
    def __init__(self, options: argparse.Namespace) -> None:
        self.source, self.target, self.partitions = options.source, options.target, options.partitions
        self.life = f"{options.transactional_id}-{os.getpid()}"
        self.recorder = Recorder(self.life, Path(options.folder) / f"{self.life}.jsonl")
        # librdkafka 2.16 may forget what it was reading when it bootstraps anew, which it does whenever its only broker is gone.
        common: dict[str, Any] = {"bootstrap.servers": options.bootstrap, "log_level": 0, "metadata.recovery.strategy": "none"}
        if "RDKAFKA_DEBUG" in os.environ:
            common |= {"debug": os.environ["RDKAFKA_DEBUG"], "log_level": 7}
        self.consumer = Consumer(
            {
                **common,
                "group.id": options.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self.producer = Producer({**common, "transactional.id": options.transactional_id, "transaction.timeout.ms": 30_000})
        self.attempt = 0

    def run(self) -> None:
        self.producer.init_transactions(LIMIT_S)
        self._rewind()
        while True:
            messages = [each for each in self.consumer.consume(BATCH, POLL_S) if not each.error()]
            if messages:
                self._copy(messages)

    def _rewind(self) -> None:
        """To what is committed; nothing that was read since counts."""
        places = [TopicPartition(self.source, index) for index in range(self.partitions)]
        committed = self.consumer.committed(places, LIMIT_S)
        self.consumer.assign([TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in committed])
        self.recorder.reassigned()

    def _copy(self, messages: list[Message]) -> None:
        self.recorder.polled([(m.topic(), m.partition(), m.offset(), m.value().decode()) for m in messages])
        transaction = self.recorder.beginning()
        self.attempt += 1
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        try:
            self.producer.begin_transaction()
            for message in messages:
                self._send(message, transaction)
            positions = self.consumer.position(self.consumer.assignment())
            self.producer.send_offsets_to_transaction(positions, self.consumer.consumer_group_metadata(), LIMIT_S)
            self.recorder.ending(transaction, commit=True)
            self.producer.commit_transaction(LIMIT_S)
            self.recorder.ended(transaction, committed=True)
        except KafkaException as error:
            self._give_up(error, transaction)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _send(self, message: Message, transaction: int) -> None:
        value = f"copy:{message.value().decode()}:{self.life}-{self.attempt}"
        send = self.recorder.sending(self.target, message.partition(), value, transaction)

        def told(error: Any, report: Message) -> None:
            if error is None:
                self.recorder.sent(send, report.offset())

        self.producer.produce(self.target, value, partition=message.partition(), on_delivery=told)

    def _give_up(self, error: KafkaException, transaction: int) -> None:
        cause = error.args[0]
        if not cause.txn_requires_abort():
            sys.exit(f"{self.life}: {cause}")  # unknown outcome, or fenced: the next life looks at what is committed
        try:
            self.producer.abort_transaction(LIMIT_S)
        except KafkaException as failed:
            sys.exit(f"{self.life}: {failed}")
        self.recorder.ended(transaction, committed=False)
        self._rewind()


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # where does it hang?
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "source", "target", "group", "transactional-id", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    Copier(parser.parse_args()).run()


if __name__ == "__main__":
    main()
