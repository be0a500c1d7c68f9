"""Makes the topics and sends events of two days: `python feed.py [BOOTSTRAP] [--events N] [--first N]`."""

import argparse
import json
import os
from datetime import UTC, datetime, timedelta

from ottla import sync

START = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--events", type=int, default=288)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    with sync.Admin(bootstrap_servers=given.bootstrap) as admin:
        for topic in ("events", "events-replayed"):
            if topic not in admin.list_topics():
                # Their times are long past: with the usual retention a broker would soon delete them.
                admin.create_topic(topic, 2, 1, configs={"retention.ms": "-1"})
    with sync.Producer(bootstrap_servers=given.bootstrap) as producer:
        for number in range(given.first, given.first + given.events):
            value = json.dumps({"degrees": number % 30}).encode()
            time_ms = int((START + number * EVERY).timestamp() * 1000)
            producer.send("events", value, key=f"sensor-{number % 4}".encode(), timestamp_ms=time_ms)
        producer.flush()
    print(f"{given.events} events sent to events")


if __name__ == "__main__":
    main()
