"""Hypothesis values of our own declarations, and what of a value survives a version.

A value is drawn once with every field of every version, so that one draw judges all versions of a message. `at_version` says
what must be read back after such a value was written in one version: it is the dumb twin of the compiled codec.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import ottla.protocol.messages
from ottla.protocol.schema import Field, Message, Struct

INT_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
# Long enough for lengths that need a second varint byte, short enough to be quick.
_TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(["", "topic", "a" * 126, "b" * 127, "ø" * 150]))
_BLOBS = st.one_of(st.binary(max_size=8), st.sampled_from([b"", b"x" * 126, b"y" * 127, b"z" * 300]))
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in INT_RANGES.items()},
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "uuid": st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16)),
    "string": _TEXTS,
    "bytes": _BLOBS,
    "records": _BLOBS,
}

Narrow = Callable[[str, Field], "st.SearchStrategy[Any] | None"]


def all_messages() -> list[type[Message]]:
    """Every message that is declared, by name."""
    found: dict[str, type[Message]] = {}
    for module in pkgutil.iter_modules(ottla.protocol.messages.__path__):
        for value in vars(importlib.import_module(f"ottla.protocol.messages.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Message) and value is not Message:
                found[value.__name__] = value
    return [found[name] for name in sorted(found)]


def values(struct_: type[Struct], narrow: Narrow = lambda name, field: None) -> st.SearchStrategy[Any]:
    """Values of a declaration. `narrow` may give a narrower strategy for a field that a judge cannot represent in full."""
    return st.builds(struct_, **{name: _field(name, field, narrow) for name, field in struct_.__fields__.items()})


def _field(name: str, field: Field, narrow: Narrow) -> st.SearchStrategy[Any]:
    one = narrow(name, field)
    if one is None:
        one = values(field.kind, narrow) if isinstance(field.kind, type) else _PRIMITIVES[field.kind]
    drawn = st.lists(one, max_size=2) if field.is_array else one
    choices = [drawn]
    if not isinstance(field.kind, type) and not field.is_array:
        choices.append(st.just(field.default))  # tagged fields are written only when they differ from it
    if field.nullable.last >= 0:
        choices.append(st.none())
    return st.one_of(choices) if len(choices) > 1 else drawn


def at_version(value: Any, version: int, *, fill_nulls: bool = True) -> Any:
    """The value as a reader of `version` sees it: absent fields at their default, nulls only where null may be written."""
    seen = type(value)()
    for name, field in type(value).__fields__.items():
        if version not in field.versions:
            continue
        item = getattr(value, name)
        if item is None and version not in field.nullable and fill_nulls:
            item = _not_null(field)
        elif isinstance(item, Struct):
            item = at_version(item, version)
        elif isinstance(item, list) and isinstance(field.kind, type):
            item = [at_version(one, version) for one in item]
        setattr(seen, name, item)
    return seen


def _not_null(field: Field) -> Any:
    if field.is_array:
        return []
    if isinstance(field.kind, type):
        return field.kind()
    return "" if field.kind == "string" else b""
