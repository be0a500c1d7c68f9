"""Compiles a declaration and a version into one reader and one writer (design.md §2).

A reader takes the whole buffer and a position and returns the value and the position after it. A writer appends parts to a
list: bytes for everything but `records` fields, whose part is whatever the sender put there (bytes, a view, a file range),
so that record bytes go from page cache to socket without passing through Python.

A message becomes one function, its nested structs written out in place. Neighbouring numbers, the length of what follows them
included, become one `struct` call, because calls are what most of the time goes into. Every length is checked against the buffer
before anything is made of it, so a hostile length costs nothing; a tagged field must fill its tag exactly, or a peer could have
the same bytes read again for each of a million tags.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

from ottla.model.errors import ProtocolError
from ottla.protocol.primitives import SMALL, read_uvarint, uvarint, uvarint_tail
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
    return _compile_reader(message, version)


@lru_cache(maxsize=None)
def writer(message: type[Message], version: int) -> Writer:
    _check(message, version)
    return _compile_writer(message, version)


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
            "read_uvarint": read_uvarint, "view": memoryview, "small": SMALL, **names,
        }  # fmt: skip
        self.lines: list[str] = []
        self.run: list[tuple[str, str]] = []  # numbers that wait for one `struct` call: target or value, and format
        self._serial = count()

    def add(self, indent: int, *lines: str) -> None:
        self.lines += ["    " * indent + line for line in lines]

    def fresh(self, stem: str) -> str:
        return f"{stem}{next(self._serial)}"

    def bind(self, stem: str, value: Any) -> str:
        name = self.fresh(stem)
        self.names[name] = value
        return name

    def take_run(self) -> tuple[str, _struct.Struct]:
        """The names in the run, separated by commas, and its layout."""
        names = ", ".join(name for name, _ in self.run if name)
        shape = _struct.Struct(">" + "".join(form for _, form in self.run))
        self.run = []
        return names, shape

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


# Reading ----------------------------------------------------------------------------------------------------------------


def _compile_reader(message: type[Message], version: int) -> Reader:
    source = _Source(new=object.__new__)
    source.add(0, "def read(buffer, position):")
    made = _read_struct(source, 1, message, version, version in message.FLEXIBLE)
    source.add(1, f"return {made}, position")
    return source.compile("read", f"{message.__qualname__} reader v{version}")  # type: ignore[no-any-return]


def _read_struct(source: _Source, indent: int, struct_: type[Struct], version: int, flexible: bool) -> str:
    """Leaves the struct in a fresh variable."""
    made = source.fresh("o")
    source.add(indent, f"{made} = new({source.bind('cls', struct_)})")
    inline, tagged = _split(struct_, version, flexible)
    present = {name for name, _ in inline}
    for name, field in struct_.__fields__.items():
        if name not in present:
            source.add(indent, f"{made}.{name} = {_default(source, field)}")
    for name, field in inline:
        if field.kind in _FORMATS and not field.is_array:
            source.run.append((f"{made}.{name}", _FORMATS[str(field.kind)]))
        else:
            _read_field(source, indent, f"{made}.{name}", name, field, version, flexible and not field.never_flexible)
    if flexible:
        _read_tags(source, indent, made, tagged, version)
    _read_run(source, indent)
    return made


def _read_run(source: _Source, indent: int) -> None:
    if source.run:
        targets, shape = source.take_run()
        unpack = source.bind("unpack", shape.unpack_from)
        source.add(indent, f"{targets}, = {unpack}(buffer, position)", f"position += {shape.size}")


def _read_byte(source: _Source, indent: int, target: str) -> None:
    if source.run:
        source.run.append((target, "B"))
        _read_run(source, indent)
    else:
        source.add(indent, f"{target} = buffer[position]", "position += 1")


def _default(source: _Source, field: Field) -> str:
    if field.is_array and field.default is list:
        return "[]"
    if isinstance(field.kind, type) and field.default is ...:
        return source.bind("make", field.kind) + "()"
    return source.bind("default", field.default)


def _read_length(source: _Source, indent: int, flexible: bool, shape: str) -> str:
    """Leaves a length in a fresh variable, -1 for null, and nothing in the run."""
    size = source.fresh("n")
    if flexible:
        _read_byte(source, indent, size)
        source.add(indent, f"if {size} > 127: {size}, position = uvarint_tail(buffer, position, {size})", f"{size} -= 1")
    else:
        source.run.append((size, shape))
        _read_run(source, indent)
    return size


def _read_field(source: _Source, indent: int, target: str, name: str, field: Field, version: int, flexible: bool) -> None:
    nullable = version in field.nullable
    if field.is_array:
        size = _read_length(source, indent, flexible, "i")
        _null_or(source, indent, target, name, size, nullable)
        _read_items(source, indent + 1, target, name, size, field, version, flexible)
    elif isinstance(field.kind, type):
        if nullable:
            _read_byte(source, indent, "present")
            source.add(indent, "if present != 1:")
            source.add(indent + 1, f"{target} = None")
            source.add(indent, "else:")
            indent += 1
        made = _read_struct(source, indent, field.kind, version, flexible)
        source.add(indent, f"{target} = {made}")
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
        items = source.fresh("items")
        least = _least_size(field.kind, version, flexible)
        source.add(indent, f"if {size} > {MAX_STRUCTS} or {size} * {least} > len(buffer) - position: raise overrun({size})")
        source.add(indent, f"{target} = {items} = []", f"for _ in range({size}):")
        made = _read_struct(source, indent + 1, field.kind, version, flexible)
        source.add(indent + 1, f"{items}.append({made})")
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


def _read_tags(source: _Source, indent: int, made: str, tagged: list[tuple[int, str, Field]], version: int) -> None:
    """Unknown tags are skipped: they are what a newer peer may say to an older one."""
    tags, tag, size, end = (source.fresh(stem) for stem in ("tags", "tag", "size", "tag_end"))
    _read_byte(source, indent, tags)
    source.add(indent, f"if {tags}:")
    source.add(indent + 1, f"if {tags} > 127: {tags}, position = uvarint_tail(buffer, position, {tags})")
    source.add(indent + 1, f"for _ in range({tags}):")
    inside = indent + 2
    source.add(inside, f"{tag}, position = read_uvarint(buffer, position)", f"{size}, position = read_uvarint(buffer, position)")
    source.add(inside, f"{end} = position + {size}", f"if {end} > len(buffer): raise overrun({size})")
    for index, (number, name, field) in enumerate(tagged):
        source.add(inside, f"{'elif' if index else 'if'} {tag} == {number}:")
        if field.kind in _FORMATS and not field.is_array:
            source.run.append((f"{made}.{name}", _FORMATS[str(field.kind)]))
            _read_run(source, inside + 1)
        else:
            _read_field(source, inside + 1, f"{made}.{name}", name, field, version, True)
        source.add(inside + 1, f"if position != {end}: raise bad_tag({tag})")
    source.add(inside, f"position = {end}")


# Writing ----------------------------------------------------------------------------------------------------------------


def _compile_writer(message: type[Message], version: int) -> Writer:
    source = _Source()
    source.add(0, "def write(o, out):")
    source.add(1, "pass")
    _write_struct(source, 1, "o", message, version, version in message.FLEXIBLE)
    return source.compile("write", f"{message.__qualname__} writer v{version}")  # type: ignore[no-any-return]


def _write_struct(source: _Source, indent: int, value: str, struct_: type[Struct], version: int, flexible: bool) -> None:
    inline, tagged = _split(struct_, version, flexible)
    for name, field in inline:
        if field.kind in _FORMATS and not field.is_array:
            source.run.append((f"{value}.{name}", _FORMATS[str(field.kind)]))
        else:
            inner = source.fresh("v")
            source.add(indent, f"{inner} = {value}.{name}")
            _write_field(source, indent, inner, name, field, version, flexible and not field.never_flexible)
    if flexible:
        _write_tags(source, indent, value, tagged, version)
    _write_run(source, indent)


def _packed(source: _Source) -> str:
    """The expression that packs the run."""
    values, shape = source.take_run()
    return f"{source.bind('pack', shape.pack)}({values})" if values else repr(bytes(shape.size))


def _write_run(source: _Source, indent: int) -> None:
    if source.run:
        source.add(indent, f"out({_packed(source)})")


def _write_field(
    source: _Source, indent: int, value: str, name: str, field: Field, version: int, flexible: bool, tagged: bool = False
) -> None:
    nullable = version in field.nullable
    if not nullable:
        source.add(indent, f"if {value} is None: raise null_field({name!r})")
    if field.is_array:
        _write_length(source, indent, value, nullable, flexible, "i")
        if nullable:
            source.add(indent, f"if {value} is not None:")
            indent += 1
        _write_items(source, indent, value, name, field, version, flexible)
    elif isinstance(field.kind, type):
        if nullable:
            # Before it stands a byte 1, or, if it is null, -1 in line but 0 behind a tag: Kafka writes an int8 here and a varint there.
            _write_run(source, indent)
            null = b"\x00" if tagged else b"\xff"
            source.add(indent, f"if {value} is None: out({null!r})", "else:")
            indent += 1
            source.add(indent, "out(b'\\x01')")
        _write_struct(source, indent, value, field.kind, version, flexible)
    else:
        _write_sized(source, indent, value, field.kind, nullable, flexible)


def _write_length(source: _Source, indent: int, value: str, nullable: bool, flexible: bool, shape: str, then: str = "") -> None:
    """The run, the length of `value` and what `then` evaluates to, in one piece."""
    size = source.fresh("n")
    more = f" + {then}" if then else ""
    if flexible:
        source.add(indent, f"{size} = " + (f"0 if {value} is None else " if nullable else "") + f"len({then or value}) + 1")
        run = f"{_packed(source)} + " if source.run else ""
        source.add(indent, f"out({run}(small[{size}] if {size} < {len(SMALL)} else uvarint({size})){more})")
    else:
        length = f"len({then or value})"
        source.run.append((f"-1 if {value} is None else {length}" if nullable else length, shape))
        source.add(indent, f"out({_packed(source)}{more})")


def _write_sized(source: _Source, indent: int, value: str, kind: str, nullable: bool, flexible: bool) -> None:
    if kind == "string":
        encoded = source.fresh("e")
        source.add(indent, f"{encoded} = " + (f"b'' if {value} is None else " if nullable else "") + f"{value}.encode()")
        _write_length(source, indent, value, nullable, flexible, "h", then=encoded)
    else:
        _write_length(source, indent, value, nullable, flexible, "i")
        source.add(indent, (f"if {value} is not None: " if nullable else "") + f"out({value})")


def _write_items(source: _Source, indent: int, value: str, name: str, field: Field, version: int, flexible: bool) -> None:
    """What follows the length of an array that is not null."""
    item = source.fresh("item")
    if isinstance(field.kind, type):
        source.add(indent, f"for {item} in {value}:")
        source.add(indent + 1, "pass")
        _write_struct(source, indent + 1, item, field.kind, version, flexible)
    elif field.kind in _FORMATS:
        source.names["pack"] = _struct.pack
        form = _FORMATS[field.kind]
        repeated = f"'>' + '{form}' * len({value})" if form == "16s" else f"'>%d{form}' % len({value})"
        source.add(indent, f"out(pack({repeated}, *{value}))")
    else:
        source.add(indent, f"for {item} in {value}:")
        source.add(indent + 1, f"if {item} is None: raise null_field({name!r})")
        _write_sized(source, indent + 1, item, field.kind, False, flexible)


def _differs(source: _Source, value: str, field: Field) -> str:
    """Whether it is other than the default; a small struct is compared field by field, without making one to compare with."""
    nested = field.kind if isinstance(field.kind, type) and not field.is_array and field.default is ... else None
    if nested and all(isinstance(inner.kind, str) and not inner.is_array for inner in nested.__fields__.values()):
        names = nested.__fields__.items()
        return " or ".join(f"{value}.{name} != {source.bind('default', inner.default)}" for name, inner in names)
    return f"{value} != {_default(source, field)}"


def _write_tags(source: _Source, indent: int, value: str, tagged: list[tuple[int, str, Field]], version: int) -> None:
    """A tagged field is written only when it differs from its default, as every Kafka implementation does."""
    if not tagged:
        source.run.append(("", "x"))  # no tags: a zero
        return
    _write_run(source, indent)
    tags, inner, parts, outer, body = (source.fresh(stem) for stem in ("tags", "v", "parts", "out_", "body"))
    source.add(indent, f"{tags} = []")
    for tag, name, field in tagged:
        source.add(indent, f"{inner} = {value}.{name}", f"if {_differs(source, inner, field)}:")
        source.add(indent + 1, f"{parts} = []", f"{outer}, out = out, {parts}.append")
        if field.kind in _FORMATS and not field.is_array:
            source.run.append((inner, _FORMATS[str(field.kind)]))
            _write_run(source, indent + 1)
        else:
            _write_field(source, indent + 1, inner, name, field, version, True, tagged=True)
            _write_run(source, indent + 1)
        source.add(indent + 1, f"out = {outer}", f"{body} = b''.join({parts})")
        source.add(indent + 1, f"{tags}.append({uvarint(tag)!r} + uvarint(len({body})) + {body})")
    source.add(indent, f"if not {tags}: out(b'\\x00')")
    source.add(indent, "else:")
    source.add(indent + 1, f"out(uvarint(len({tags})))", f"for tag in {tags}: out(tag)")
