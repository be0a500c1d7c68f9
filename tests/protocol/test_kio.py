"""Our codec against `kio`, which was generated from Kafka's own definitions by other people.

Ours to kio: a value of our declaration, written by us, must be read by kio and written back as the same bytes. kio to ours:
a value of kio's classes, written by kio, must be read by us and written back as the same bytes. Every message and version that
kio has, except those we leave out on purpose.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import Records

from ottla.protocol.codec import decode, encode
from ottla.protocol.schema import Field, Message
from tests.protocol.left_out import why_left_out
from tests.protocol.strategies import all_messages, at_version, values

EXAMPLES = 25  # values of ours per message, each judged in every version
THEIR_EXAMPLES = 10  # values of kio's for every version of a message
st.register_type_strategy(Records, st.binary(max_size=300).map(Records.parse))
OURS = {message.__name__: message for message in all_messages()}


def _class_name(schema: str, kind: EntityType) -> str:
    stem = {"k_raft_version_record": "KRaftVersionRecord"}.get(schema) or "".join(part.title() for part in schema.split("_"))
    return stem + {EntityType.request: "Request", EntityType.response: "Response"}.get(kind, "")


def _pairs() -> Iterator[tuple[str, dict[int, Any]]]:
    """Name of a message → kio's class of each of its versions."""
    found: dict[str, dict[int, Any]] = {}
    for schema, versions in schema_name_map.items():
        for version, kinds in versions.items():
            for kind in kinds:
                found.setdefault(_class_name(schema, kind), {})[version] = load_entity_schema(schema, version, kind)
    yield from sorted(found.items())


KIO = dict(_pairs())
JUDGED = sorted(name for name in KIO if not why_left_out(name))


def narrow(name: str, field: Field) -> st.SearchStrategy[Any] | None:
    """kio turns some numbers into richer types, which hold less than the wire does."""
    if name.endswith("error_code"):
        return st.sampled_from([code.value for code in ErrorCode])
    if field.kind == "int64" and ("time" in name or name.endswith("_ms")):
        return st.integers(0, 2**41)
    return None


@cache
def kio_values(entity: Any) -> st.SearchStrategy[Any]:
    """Values of one of kio's classes. Hypothesis could infer them, but its lists grow without bound when nested."""
    return st.builds(entity, **{field.name: _kio_field(field.type) for field in dataclasses.fields(entity)})


def _kio_field(annotation: Any) -> st.SearchStrategy[Any]:
    if get_origin(annotation) is UnionType:
        return st.one_of([st.none() if one is NoneType else _kio_field(one) for one in get_args(annotation)])
    if get_origin(annotation) is tuple:
        return st.lists(_kio_field(get_args(annotation)[0]), max_size=2).map(tuple)
    return kio_values(annotation) if dataclasses.is_dataclass(annotation) else st.from_type(annotation)


def _write(value: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(value))(out, value)
    return out.getvalue()


def test_everything_kio_has_is_declared_or_left_out_for_a_reason() -> None:
    assert not [name for name in JUDGED if name not in OURS]
    for name in JUDGED:
        missing = set(KIO[name]) - set(OURS[name].VERSIONS)
        assert not missing, f"{name} lacks versions {sorted(missing)}"


@pytest.mark.parametrize("name", JUDGED)
def test_what_we_write_kio_reads_and_writes_back(name: str) -> None:
    message: type[Message] = OURS[name]

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values(message, narrow))
    def judge(value: Message) -> None:
        for version, theirs in KIO[name].items():
            expected = at_version(value, version)
            ours = encode(expected, version)
            assert decode(message, version, ours) == expected
            read, size = entity_reader(theirs)(ours, 0)
            assert size == len(ours)
            assert _write(read) == ours, f"v{version} {read}"

    judge()


@pytest.mark.parametrize("name", JUDGED)
def test_what_kio_writes_we_read_and_write_back(name: str) -> None:
    message: type[Message] = OURS[name]

    for version, kios in KIO[name].items():
        _judge_theirs(message, version, kio_values(kios))


def _judge_theirs(message: type[Message], version: int, theirs: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=THEIR_EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(theirs)
    def judge(value: Any) -> None:
        written = _write(value)
        assert encode(decode(message, version, written), version) == written

    judge()
