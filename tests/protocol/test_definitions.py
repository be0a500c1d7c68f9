"""Our declarations, field by field, against the JSON definitions that Kafka 4.3 carries inside its jars.

Both sides are turned into the same flat rows, one per field and struct: path, type, default, tag, and the versions (within
the message's valid ones) in which the field lives, may be null, and is tagged. The rows must be equal, in the same order,
because order is what the wire is made of.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from ottla.protocol.apis import APIS
from ottla.protocol.schema import Field, Message, Struct, Versions
from tests.compatibility.jars import jar_directory
from tests.protocol.left_out import why_left_out
from tests.protocol.strategies import all_messages

pytestmark = pytest.mark.kafka

OURS = {message.__name__: message for message in all_messages()}
_INTEGERS = {"int8", "int16", "uint16", "int32", "uint32", "int64"}
_ZERO: dict[str, Any] = dict.fromkeys(_INTEGERS, 0) | {
    "bool": False, "string": "", "bytes": b"", "uuid": bytes(16), "float64": 0.0, "records": None,
}  # fmt: skip


class Row(NamedTuple):
    path: str
    kind: str
    default: Any
    tag: int | None
    versions: frozenset[int]
    nullable: frozenset[int]
    tagged: frozenset[int]
    flexible_length: bool


@cache
def definitions() -> dict[str, dict[str, Any]]:
    """Name → Kafka's definition, from every Kafka jar that carries some."""
    found: dict[str, dict[str, Any]] = {}
    for jar in sorted(jar_directory().glob("kafka*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.namelist():
                if re.fullmatch(r"common/(message|metadata)/\w+\.json", entry):
                    definition = json.loads(_without_comments(archive.read(entry).decode()))
                    found[definition["name"]] = definition
    return found


def _without_comments(text: str) -> str:
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match.group(1) or "", text)


def _snake(name: str) -> str:
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", parted).lower()


def _kafka_rows(definition: dict[str, Any], valid: Versions) -> Iterator[Row]:
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}

    def walk(fields: list[dict[str, Any]], prefix: str, parent: frozenset[int]) -> Iterator[Row]:
        for field in fields:
            kind = field["type"]
            base = kind.removeprefix("[]")
            lives = _within(field.get("versions", field.get("taggedVersions")), valid) & parent
            yield Row(
                prefix + _snake(field["name"]),
                kind if base in _ZERO else kind.replace(base, "struct"),
                _kafka_default(field, kind, base),
                field.get("tag"),
                lives,
                _within(field.get("nullableVersions"), valid) & lives,
                _within(field.get("taggedVersions"), valid) & lives,
                field.get("flexibleVersions") != "none",
            )
            yield from walk(field.get("fields") or common.get(base, []), f"{prefix}{_snake(field['name'])}.", lives)

    yield from walk(definition["fields"], "", frozenset(valid))


def _kafka_default(field: dict[str, Any], kind: str, base: str) -> Any:
    default = field.get("default")
    # The word "null" is a null; a JSON null is as good as nothing to Kafka's generator, whose structs and lists are then empty.
    if default == "null":
        return None
    if kind.startswith("[]"):
        return []
    if base not in _ZERO:
        return "struct"
    if default is None:
        return _ZERO[base]
    if base == "bool":
        return str(default).lower() == "true"
    if base == "string":
        return default
    return float(default) if base == "float64" else int(str(default), 0)


def _our_rows(struct_: type[Struct], valid: Versions, prefix: str = "", parent: frozenset[int] | None = None) -> Iterator[Row]:
    for name, field in struct_.__fields__.items():
        lives = _clip(field.versions, valid) & (frozenset(valid) if parent is None else parent)
        nested = isinstance(field.kind, type)
        yield Row(
            prefix + name,
            ("[]" if field.is_array else "") + ("struct" if nested else str(field.kind)),
            _our_default(field, nested),
            field.tag,
            lives,
            _clip(field.nullable, valid) & lives,
            _clip(field.tagged, valid) & lives,
            not field.never_flexible,
        )
        if isinstance(field.kind, type):
            yield from _our_rows(field.kind, valid, f"{prefix}{name}.", lives)


def _our_default(field: Field, nested: bool) -> Any:
    if field.default is None:
        return None
    if field.is_array:
        return [] if field.default is list else field.default
    return "struct" if nested and field.default is ... else field.default


def _clip(versions: Versions, valid: Versions) -> frozenset[int]:
    return frozenset(version for version in valid if version in versions)


def _within(text: str | None, valid: Versions) -> frozenset[int]:
    return _clip(Versions.parse(text), valid)


def test_every_message_of_kafka_is_declared_or_left_out_for_a_reason() -> None:
    assert len(definitions()) > 250
    undeclared = [name for name in sorted(definitions()) if name not in OURS and not why_left_out(name)]
    assert not undeclared
    assert not [name for name in OURS if name not in definitions()], "a message that Kafka does not have"
    for name in definitions():
        if reason := why_left_out(name):
            print(f"{name}: {reason}")


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_declaration_says_what_kafka_says(name: str) -> None:
    ours: type[Message] = OURS[name]
    theirs = definitions()[name]
    assert str(ours.VERSIONS) == theirs["validVersions"]
    assert _clip(ours.FLEXIBLE, ours.VERSIONS) == _within(theirs["flexibleVersions"], ours.VERSIONS)
    assert theirs.get("apiKey", -1) == ours.TYPE_KEY
    assert list(_our_rows(ours, ours.VERSIONS)) == list(_kafka_rows(theirs, ours.VERSIONS))


def _stable(definition: dict[str, Any]) -> str:
    """What a broker advertises: the valid versions without one that Kafka still calls unstable."""
    valid = Versions.parse(definition["validVersions"])
    return str(Versions(valid.first, valid.last - bool(definition.get("latestVersionUnstable"))))


def test_the_table_of_apis_has_kafkas_keys_versions_and_listeners() -> None:
    requests = {one["apiKey"]: one for one in definitions().values() if one["type"] == "request"}
    for key, api in APIS.items():
        theirs = requests[key]
        assert theirs["name"] == api.name + "Request"
        assert _stable(theirs) == str(api.versions)
        listeners = {"broker", "controller"} & set(theirs.get("listeners", ()))
        assert listeners == set(api.listeners), api.name
    absent = [one for key, one in requests.items() if key not in APIS and one["validVersions"] != "none"]
    assert all(why_left_out(one["name"]) for one in absent)
