"""Compiles a declaration and a version into one reader and one writer (design.md §2).

A reader takes the whole buffer and a position and returns the value and the position after it. A writer appends parts to a
list: bytes for everything but `records` fields, whose part is whatever the sender put there (bytes, a view, a file range),
so that record bytes go from page cache to socket without passing through Python.

Neighbouring fields of fixed size become one `struct` call. Every length is checked against the buffer before anything is
made of it, so a hostile length costs nothing; a tagged field must fill its tag exactly, or a peer could have the same bytes
read again for each of a million tags.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

from ottla.model.errors import ProtocolError
from ottla.protocol.primitives import read_uvarint, uvarint, uvarint_tail
from ottla.protocol.schema import Field, Message, Struct

M = TypeVar("M", bound=Message)
Reader = Callable[[bytes | bytearray, int], tuple[Any, int]]
Writer = Callable[[Any, Callable[[Any], None]], None]

_FORMATS = {
    "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d", "bool": "?", "uuid": "16s",
}  # fmt: skip

MAX_STRUCTS = 1 << 20  # in one array: a frame of the largest size must not become a hundred times its size in objects


def decode(message: type[M], version: int, buffer: bytes | bytearray, position: int = 0) -> M:
    """Read a whole message; anything left over is a broken peer."""
    value, end = read_from(message, version, buffer, position)
    if end != len(buffer):
        raise ProtocolError(f"{message.__name__} v{version}: {len(buffer) - end} bytes left over")
    return value


def read_from(message: type[M], version: int, buffer: bytes | bytearray, position: int = 0) -> tuple[M, int]:
    try:
        return reader(message, version)(buffer, position)
    except (_struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{message.__name__} v{version}: {error}") from None


def encode(value: Message, version: int) -> bytes:
    """Write a message whose record fields, if any, are plain bytes."""
    return b"".join(encode_parts(value, version))


def encode_parts(value: Message, version: int) -> list[Any]:
    parts: list[Any] = []
    writer(type(value), version)(value, parts.append)
    return parts


@lru_cache(maxsize=None)
def reader(message: type[Message], version: int) -> Reader:
    _check(message, version)
    return _compile_reader(message, version, version in message.FLEXIBLE)


@lru_cache(maxsize=None)
def writer(message: type[Message], version: int) -> Writer:
    _check(message, version)
    return _compile_writer(message, version, version in message.FLEXIBLE)


def _check(message: type[Message], version: int) -> None:
    if version not in message.VERSIONS:
        raise ProtocolError(f"{message.__name__} has versions {message.VERSIONS}, not {version}")


def overrun(size: int) -> ProtocolError:
    return ProtocolError(f"a length of {size} runs past the end of the message")


def bad_tag(tag: int) -> ProtocolError:
    return ProtocolError(f"tag {tag} does not have the size it says")


def null_field(name: str) -> ProtocolError:
    return ProtocolError(f"{name} must not be null")


class _Source:
    """Lines of Python under construction, and the names they use."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, Any] = {
            "overrun": overrun, "bad_tag": bad_tag, "null_field": null_field, "uvarint": uvarint, "uvarint_tail": uvarint_tail,
            "read_uvarint": read_uvarint, "view": memoryview, **names,
        }  # fmt: skip
        self.lines: list[str] = []
        self._serial = count()

    def add(self, indent: int, *lines: str) -> None:
        self.lines += ["    " * indent + line for line in lines]

    def fresh(self, stem: str) -> str:
        return f"{stem}{next(self._serial)}"

    def bind(self, stem: str, value: Any) -> str:
        name = self.fresh(stem)
        self.names[name] = value
        return name

    def compile(self, name: str, title: str) -> Any:
        exec(compile("\n".join(self.lines), f"<{title}>", "exec"), self.names)
        return self.names[name]


def _split(struct_: type[Struct], version: int, flexible: bool) -> tuple[list[tuple[str, Field]], list[tuple[int, str, Field]]]:
    """The fields of this version: those in line, in order, and those behind tags, by tag."""
    inline, tagged = [], []
    for name, field in struct_.__fields__.items():
        if version not in field.versions:
            continue
        if flexible and field.tag is not None and version in field.tagged:
            tagged.append((field.tag, name, field))
        else:
            inline.append((name, field))
    return inline, sorted(tagged, key=lambda row: row[0])


def _runs(fields: Sequence[tuple[str, Field]]) -> list[list[tuple[str, Field]]]:
    """Neighbouring fields of fixed size together, every other field alone."""
    runs: list[list[tuple[str, Field]]] = []
    fixed = False
    for name, field in fields:
        is_fixed = field.kind in _FORMATS and not field.is_array
        if is_fixed and fixed:
            runs[-1].append((name, field))
        else:
            runs.append([(name, field)])
        fixed = is_fixed
    return runs


# Reading ----------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=None)
def _compile_reader(struct_: type[Struct], version: int, flexible: bool) -> Reader:
    source = _Source(new=object.__new__, cls=struct_)
    source.add(0, "def read(buffer, position):")
    source.add(1, "o = new(cls)")
    inline, tagged = _split(struct_, version, flexible)
    present = {name for name, _ in inline}
    for name, field in struct_.__fields__.items():
        if name not in present:
            source.add(1, f"o.{name} = {_default(source, field)}")
    for run in _runs(inline):
        if run[0][1].kind in _FORMATS and not run[0][1].is_array:
            shape = _struct.Struct(">" + "".join(_FORMATS[str(field.kind)] for _, field in run))
            unpack = source.bind("unpack", shape.unpack_from)
            targets = ", ".join(f"o.{name}" for name, _ in run)
            source.add(1, f"{targets}, = {unpack}(buffer, position)", f"position += {shape.size}")
        else:
            [(name, field)] = run
            _read_field(source, 1, f"o.{name}", name, field, version, flexible and not field.never_flexible)
    if flexible:
        _read_tags(source, tagged, version)
    source.add(1, "return o, position")
    return source.compile("read", f"{struct_.__qualname__} reader v{version}")  # type: ignore[no-any-return]


def _default(source: _Source, field: Field) -> str:
    if field.is_array and field.default is list:
        return "[]"
    if isinstance(field.kind, type) and field.default is ...:
        return source.bind("make", field.kind) + "()"
    return source.bind("default", field.default)


def _read_length(source: _Source, indent: int, flexible: bool, shape: str) -> str:
    """Leaves a length in a fresh variable, -1 for null."""
    size = source.fresh("n")
    if flexible:
        source.add(indent, f"{size} = buffer[position] - 1", "position += 1")
        source.add(indent, f"if {size} > 126:")
        source.add(indent + 1, f"{size}, position = uvarint_tail(buffer, position, {size} + 1)", f"{size} -= 1")
    else:
        fixed = _struct.Struct(">" + shape)
        unpack = source.bind("unpack", fixed.unpack_from)
        source.add(indent, f"{size}, = {unpack}(buffer, position)", f"position += {fixed.size}")
    return size


def _read_field(source: _Source, indent: int, target: str, name: str, field: Field, version: int, flexible: bool) -> None:
    nullable = version in field.nullable
    if field.is_array:
        size = _read_length(source, indent, flexible, "i")
        _null_or(source, indent, target, name, size, nullable)
        _read_items(source, indent + 1, target, name, size, field, version, flexible)
    elif isinstance(field.kind, type):
        read = source.bind("read_struct", _compile_reader(field.kind, version, flexible))
        if nullable:
            source.add(indent, "present = buffer[position]", "position += 1", "if present != 1:")
            source.add(indent + 1, f"{target} = None")
            source.add(indent, "else:")
            indent += 1
        source.add(indent, f"{target}, position = {read}(buffer, position)")
    else:
        _read_sized(source, indent, target, name, field.kind, nullable, flexible)


def _null_or(source: _Source, indent: int, target: str, name: str, size: str, nullable: bool) -> None:
    source.add(indent, f"if {size} < 0:")
    source.add(indent + 1, f"{target} = None" if nullable else f"raise null_field({name!r})")
    source.add(indent, "else:")


def _read_sized(source: _Source, indent: int, target: str, name: str, kind: str, nullable: bool, flexible: bool) -> None:
    size = _read_length(source, indent, flexible, "h" if kind == "string" else "i")
    _null_or(source, indent, target, name, size, nullable)
    made = {
        "string": "str(buffer[position:end], 'utf-8')",
        "bytes": "bytes(buffer[position:end])",
        "records": "view(buffer)[position:end]",
    }[kind]
    source.add(indent + 1, f"end = position + {size}", f"if end > len(buffer): raise overrun({size})")
    source.add(indent + 1, f"{target} = {made}", "position = end")


def _read_items(
    source: _Source, indent: int, target: str, name: str, size: str, field: Field, version: int, flexible: bool
) -> None:
    if isinstance(field.kind, type):
        read = source.bind("read_struct", _compile_reader(field.kind, version, flexible))
        items = source.fresh("items")
        least = _least_size(field.kind, version, flexible)
        source.add(indent, f"if {size} > {MAX_STRUCTS} or {size} * {least} > len(buffer) - position: raise overrun({size})")
        source.add(indent, f"{target} = {items} = []", f"for _ in range({size}):")
        source.add(indent + 1, f"item, position = {read}(buffer, position)", f"{items}.append(item)")
    elif field.kind in _FORMATS:
        form = _FORMATS[field.kind]
        width = _struct.calcsize(">" + form)
        source.names["unpack_from"] = _struct.unpack_from
        source.add(indent, f"if {size} * {width} > len(buffer) - position: raise overrun({size})")
        if form == "16s":
            source.add(indent, f"{target} = [bytes(buffer[at:at + 16]) for at in range(position, position + {size} * 16, 16)]")
        else:
            source.add(indent, f"{target} = list(unpack_from('>%d{form}' % {size}, buffer, position))")
        source.add(indent, f"position += {size} * {width}")
    else:
        items = source.fresh("items")
        source.add(indent, f"if {size} > len(buffer) - position: raise overrun({size})")
        source.add(indent, f"{target} = {items} = []", f"for _ in range({size}):")
        _read_sized(source, indent + 1, "item", name, field.kind, False, flexible)
        source.add(indent + 1, f"{items}.append(item)")


def _least_size(struct_: type[Struct], version: int, flexible: bool) -> int:
    """The bytes that the smallest value of a struct takes; at least one, so that a count is always bounded by the buffer."""
    size = int(flexible)
    for _, field in _split(struct_, version, flexible)[0]:
        if field.is_array or field.kind in ("bytes", "records"):
            size += 1 if flexible else 4
        elif isinstance(field.kind, type):
            size += 1 if version in field.nullable else _least_size(field.kind, version, flexible)
        else:
            size += _struct.calcsize(">" + _FORMATS[field.kind]) if field.kind in _FORMATS else 1 if flexible else 2
    return max(size, 1)


def _read_tags(source: _Source, tagged: list[tuple[int, str, Field]], version: int) -> None:
    """Unknown tags are skipped: they are what a newer peer may say to an older one."""
    source.add(1, "tags, position = read_uvarint(buffer, position)")
    source.add(1, "for _ in range(tags):")
    source.add(2, "tag, position = read_uvarint(buffer, position)", "size, position = read_uvarint(buffer, position)")
    source.add(2, "tag_end = position + size", "if tag_end > len(buffer): raise overrun(size)")
    for index, (tag, name, field) in enumerate(tagged):
        source.add(2, f"{'elif' if index else 'if'} tag == {tag}:")
        if field.kind in _FORMATS and not field.is_array:
            unpack = source.bind("unpack", _struct.Struct(">" + _FORMATS[str(field.kind)]).unpack_from)
            source.add(3, f"if size != {_struct.calcsize('>' + _FORMATS[str(field.kind)])}: raise bad_tag(tag)")
            source.add(3, f"o.{name}, = {unpack}(buffer, position)")
        else:
            _read_field(source, 3, f"o.{name}", name, field, version, True)
            source.add(3, "if position != tag_end: raise bad_tag(tag)")
    source.add(2, "position = tag_end")


# Writing ----------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=None)
def _compile_writer(struct_: type[Struct], version: int, flexible: bool) -> Writer:
    source = _Source()
    source.add(0, "def write(o, out):")
    source.add(1, "pass")
    inline, tagged = _split(struct_, version, flexible)
    for run in _runs(inline):
        if run[0][1].kind in _FORMATS and not run[0][1].is_array:
            pack = source.bind("pack", _struct.Struct(">" + "".join(_FORMATS[str(f.kind)] for _, f in run)).pack)
            values = ", ".join(f"o.{name}" for name, _ in run)
            source.add(1, f"out({pack}({values}))")
        else:
            [(name, field)] = run
            source.add(1, f"v = o.{name}")
            _write_field(source, 1, "v", name, field, version, flexible and not field.never_flexible)
    if flexible:
        _write_tags(source, tagged, version)
    return source.compile("write", f"{struct_.__qualname__} writer v{version}")  # type: ignore[no-any-return]


def _write_field(
    source: _Source, indent: int, value: str, name: str, field: Field, version: int, flexible: bool, tagged: bool = False
) -> None:
    nullable = version in field.nullable
    is_struct = isinstance(field.kind, type) and not field.is_array
    # Before a struct that may be null stands a byte 1, or -1 in line, but 0 behind a tag: Kafka writes an int8 here and a varint there.
    null = (
        (b"\x00" if tagged else b"\xff")
        if is_struct
        else b"\x00"
        if flexible
        else b"\xff\xff"
        if field.kind == "string" and not field.is_array
        else b"\xff" * 4
    )
    source.add(indent, f"if {value} is None:")
    source.add(indent + 1, f"out({null!r})" if nullable else f"raise null_field({name!r})")
    source.add(indent, "else:")
    if is_struct:
        write = source.bind("write_struct", _compile_writer(field.kind, version, flexible))
        if nullable:
            source.add(indent + 1, "out(b'\\x01')")
        source.add(indent + 1, f"{write}({value}, out)")
    elif field.is_array:
        _write_length(source, indent + 1, f"len({value})", flexible, "i")
        _write_items(source, indent + 1, value, name, field, version, flexible)
    else:
        _write_sized(source, indent + 1, value, str(field.kind), flexible)


def _write_length(source: _Source, indent: int, size: str, flexible: bool, shape: str) -> None:
    if flexible:
        source.add(indent, f"out(uvarint({size} + 1))")
    else:
        source.add(indent, f"out({source.bind('pack', _struct.Struct('>' + shape).pack)}({size}))")


def _write_sized(source: _Source, indent: int, value: str, kind: str, flexible: bool) -> None:
    if kind == "string":
        source.add(indent, f"encoded = {value}.encode()")
        value = "encoded"
    _write_length(source, indent, f"len({value})", flexible, "h" if kind == "string" else "i")
    source.add(indent, f"out({value})")


def _write_items(source: _Source, indent: int, value: str, name: str, field: Field, version: int, flexible: bool) -> None:
    if isinstance(field.kind, type):
        write = source.bind("write_struct", _compile_writer(field.kind, version, flexible))
        source.add(indent, f"for item in {value}: {write}(item, out)")
    elif field.kind in _FORMATS:
        source.names["pack"] = _struct.pack
        form = _FORMATS[field.kind]
        repeated = f"'>' + '{form}' * len({value})" if form == "16s" else f"'>%d{form}' % len({value})"
        source.add(indent, f"out(pack({repeated}, *{value}))")
    else:
        source.add(indent, f"for item in {value}:")
        source.add(indent + 1, f"if item is None: raise null_field({name!r})")
        _write_sized(source, indent + 1, "item", field.kind, flexible)


def _differs(source: _Source, field: Field) -> str:
    """Whether `v` is other than the default; a small struct is compared field by field, without making one to compare with."""
    nested = field.kind if isinstance(field.kind, type) and not field.is_array and field.default is ... else None
    if nested and all(isinstance(inner.kind, str) and not inner.is_array for inner in nested.__fields__.values()):
        names = nested.__fields__.items()
        return " or ".join(f"v.{name} != {source.bind('default', inner.default)}" for name, inner in names)
    return f"v != {_default(source, field)}"


def _write_tags(source: _Source, tagged: list[tuple[int, str, Field]], version: int) -> None:
    """A tagged field is written only when it differs from its default, as every Kafka implementation does."""
    if not tagged:
        source.add(1, "out(b'\\x00')")
        return
    source.add(1, "tags = []")
    for tag, name, field in tagged:
        source.add(1, f"v = o.{name}", f"if {_differs(source, field)}:")
        source.add(2, "parts = []", "add = parts.append")
        source.add(2, "out_, out = out, add")
        if field.kind in _FORMATS and not field.is_array:
            pack = source.bind("pack", _struct.Struct(">" + _FORMATS[str(field.kind)]).pack)
            source.add(2, f"out({pack}(v))")
        else:
            _write_field(source, 2, "v", name, field, version, True, tagged=True)
        source.add(2, "out = out_", "body = b''.join(parts)")
        source.add(2, f"tags.append({uvarint(tag)!r} + uvarint(len(body)) + body)")
    source.add(1, "out(uvarint(len(tags)))", "for tag in tags: out(tag)")
