"""docs/COMPATIBILITY.md says what ottla speaks. It is printed from the table of APIs, the handlers and the accepted differences:

OTTLA_PRINT=1 python -m pytest tests/compatibility/test_page.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ottla.broker import handlers
from ottla.broker.dispatch import served_by
from ottla.protocol.apis import APIS, Api
from tests.compatibility.differential.differences import ACCEPTED
from tests.compatibility.differential.transcripts import SCENARIOS, kept
from tests.protocol.left_out import REASONS

handlers.load()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "COMPATIBILITY.md"
NOT_ADVERTISED = {"GetTelemetrySubscriptions", "PushTelemetry"}

INTRODUCTION = """\
# What ottla speaks

Printed by `tests/compatibility/test_page.py` from the table of APIs (`src/ottla/protocol/apis.py`), the registered handlers and the
list of accepted differences; do not edit by hand.

The yardstick is Apache Kafka 4.3. Requests and responses of every version below are judged against Kafka's own definitions, against
`kio`, and against frames captured from librdkafka, kafka-python, aiokafka and Kafka's Java clients. Behaviour is judged by asking both
systems the same {questions:,} questions and comparing the answers field by field (`tests/compatibility/differential`), and by running the
same scripts with those four clients against both.
"""

# What no single answer shows: how nodes deal with each other. Each has its test; `raft`, `metadata` and `replication` say more.
CLUSTER = (
    "A broker whose connection is lost and whose port refuses another one is fenced at once; silence is left to "
    "`broker.session.timeout.ms`, which is all that Kafka's controller goes by.",
    "A broker sends a heartbeat at once when it reads that another is in controlled shutdown, so that nobody who stops waits for "
    "the next ones: they tell the controller that the others know of the new leaders.",
    "A broker that loses its connection to another keeps `Metadata` waiting until the controller has decided about that one, for half "
    "a second at most, and not at all if its port still takes connections: whoever asks right after a death is told of the successor.",
    "Voters that start without a leader ask for an election at once: pre-votes (KIP-996) disturb nobody.",
    "A long poll of a follower ends when its next request comes in behind it on the same connection.",
    "A broker with many partitions leaves them in several batches of records: until its turn comes a partition shows a fenced leader.",
    "A broker lets clients in once it is registered and its logs are open. While every broker is fenced, `Metadata` names the one "
    "that answers, never none: librdkafka takes an empty list at its word.",
    "The voters of ottla's own quorums are those of `controller.quorum.voters`, for ever. Under Kafka's controllers they come from "
    "the log, as there. So ottla's controllers refuse `kraft.version=1` in the words of one of Kafka's that is too old for it, where "
    "Kafka 4.3 makes voters that can be changed out of static ones.",
    "A controller does not start if `controller.quorum.voters` has its id at a port where it does not listen, nor any node whose "
    "list differs from that of the quorum's leader.",
    "A broker whose disk was replaced says in which directory a replica lives (`AssignReplicasToDirs`) once another one leads and has it in "
    "sync, or if there is no other replica. Kafka's says so as it starts, and may then be elected with nothing.",
    "A broker whose disk refuses writes asks to be fenced, so that others lead, and comes back once the disk takes writes; the last broker "
    "goes on, and answers KAFKA_STORAGE_ERROR to what it cannot write. Kafka's ends itself.",
    "A metadata log that cannot be written stands still until it can be, and the node with it; a controller with such a log lets another "
    "one decide. One that cannot be synced ends the node. A node that is still starting gives up in either case and says why.",
    "A node does not start with properties that would only seem to be honoured: several folders in `log.dirs`, a listener with other "
    "security than PLAINTEXT, an authorizer, or a policy for topics or settings.",
    "A node that is alone in a cluster which Kafka began sets the features that ottla does not have (`share.version`, "
    "`streams.version`) to 0 and serves what Kafka left. Among others it does not start, and names them.",
    "A leader that is named again in a later epoch counts nothing that it knew of its followers before.",
    "`ListOffsets` by time unpacks no batch to more than the topic's `max.message.bytes`, and few for one answer: beyond that it names "
    "where the batch begins (for the largest time, where it ends), where Kafka unpacks whatever there is.",
    "The last of several nodes that stop together does not wait for a controller that can no longer be.",
    "A quota for an address takes addresses only, where Kafka's controller looks the names of hosts up.",
    "A client's connection past `max.connections` is closed; Kafka leaves it unaccepted until another one ends.",
    "Settings that do nothing here are taken and shown all the same; `DescribeConfigs` says so where it is asked for documentation.",
)


def page() -> str:
    questions = sum(len(versions) for name in SCENARIOS for versions in kept(name).values())
    parts = [INTRODUCTION.format(questions=questions), *_served(), *_not_served(), *_differences(), *_cluster()]
    return "\n".join(parts) + "\n"


def _versions(api: Api) -> str:
    return (
        f"0-{api.versions.last}, of which 0-2 only so that older librdkafka compresses"
        if api.name == "Produce"
        else str(api.versions)
    )


def _served() -> Iterator[str]:
    yield "## Served\n"
    yield "| key | request | versions | by brokers | by controllers |"
    yield "|---:|---|---|:---:|:---:|"
    broker, controller = served_by("broker"), served_by("controller")
    for key, api in sorted(APIS.items()):
        if key in broker or key in controller:
            note = " (declined; not advertised)" if api.name in NOT_ADVERTISED else ""
            marks = ("●" if key in broker else "", "●" if key in controller else "")
            yield f"| {key} | {api.name}{note} | {_versions(api)} | {marks[0]} | {marks[1]} |"
    yield ""


def _not_served() -> Iterator[str]:
    served = served_by("broker").keys() | served_by("controller").keys()
    rest = [api.name for key, api in sorted(APIS.items()) if key not in served]
    yield "## Not served\n"
    if rest:
        yield f"Declared, but without a handler yet: {', '.join(rest)}.\n"
    yield "Not declared at all:\n"
    for part, reason in REASONS.items():
        yield f"- `{part}…`: {reason}."
    yield ""


def _differences() -> Iterator[str]:
    yield "## Where ottla answers otherwise, and why\n"
    yield "Everything else that was compared is equal, field by field.\n"
    for rule in ACCEPTED:
        apis = re.findall(r"[A-Z]\w+", rule.question)
        yield f"- {' and '.join(f'`{name}`' for name in apis) or 'Everywhere'}: {rule.reason}"


def _cluster() -> Iterator[str]:
    yield "\n## Where a cluster behaves otherwise\n"
    for sentence in CLUSTER:
        yield f"- {sentence}"


def test_the_page_is_what_the_tables_say() -> None:
    if os.environ.get("OTTLA_PRINT"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "run: OTTLA_PRINT=1 python -m pytest tests/compatibility/test_page.py"
