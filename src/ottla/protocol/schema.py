"""How a message is declared: one class for all versions, each field with the versions it lives in.

    class HeartbeatRequest(Message, key=12, versions="0-4", flexible="4+"):
        group_id: str = string()
        generation_id: int = int32()
        member_id: str = string()
        group_instance_id: str | None = string("3+", nullable="3+", default=None)

A class made this way is an ordinary slotted value: fields are keyword arguments with Kafka's defaults, two values are equal
when their fields are. A field outside the version being written is left out; one outside the version being read has its
default. `codec` compiles a class and a version into straight-line functions on first use.

The annotation is for the type checker, the right-hand side for the codec. Field functions return `Any` so that a checker
takes them for default values (PEP 681): every field may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

UNBOUNDED = 32767
ZERO_UUID = bytes(16)


class Versions(NamedTuple):
    """An inclusive range of versions; `NO_VERSIONS` is empty."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        if self.last < self.first:
            return "none"
        if self.last == UNBOUNDED:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        """`"3+"`, `"3-5"`, `"3"`, `"none"` or nothing at all."""
        if text is None or text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), UNBOUNDED)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


NO_VERSIONS = Versions(0, -1)
ALL_VERSIONS = Versions(0, UNBOUNDED)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a declaration. `kind` is a primitive's name, or the class of a nested struct."""

    kind: str | type[Struct]
    versions: Versions
    default: Any
    nullable: Versions = NO_VERSIONS
    tag: int | None = None
    tagged: Versions = NO_VERSIONS
    is_array: bool = False
    never_flexible: bool = False  # only the client id of the request header: old brokers must be able to read it


def _field(
    kind: str | type[Struct],
    versions: str,
    default: Any,
    nullable: str | None,
    tag: int | None,
    *,
    tagged: str | None = None,
    is_array: bool = False,
    never_flexible: bool = False,
) -> Any:
    lives = Versions.parse(versions)
    tagged_versions = NO_VERSIONS if tag is None else Versions.parse(tagged) if tagged else lives
    return Field(kind, lives, default, Versions.parse(nullable), tag, tagged_versions, is_array, never_flexible)


def _number(kind: str) -> Any:
    def declare(versions: str = "0+", *, default: float = 0, tag: int | None = None) -> Any:
        return _field(kind, versions, default, None, tag)

    declare.__name__ = kind
    return declare


int8 = _number("int8")
int16 = _number("int16")
uint16 = _number("uint16")
int32 = _number("int32")
uint32 = _number("uint32")
int64 = _number("int64")
float64 = _number("float64")


def boolean(versions: str = "0+", *, default: bool = False, tag: int | None = None) -> Any:
    return _field("bool", versions, default, None, tag)


def uuid(versions: str = "0+", *, default: bytes = ZERO_UUID, tag: int | None = None) -> Any:
    """Sixteen raw bytes: hashable, comparable and free to decode. `model.ids` prints them as Kafka does."""
    return _field("uuid", versions, default, None, tag)


def string(
    versions: str = "0+",
    *,
    default: str | None = "",
    nullable: str | None = None,
    tag: int | None = None,
    never_flexible: bool = False,
) -> Any:
    return _field("string", versions, default, nullable, tag, never_flexible=never_flexible)


def blob(versions: str = "0+", *, default: bytes | None = b"", nullable: str | None = None, tag: int | None = None) -> Any:
    """Kafka's `bytes`."""
    return _field("bytes", versions, default, nullable, tag)


def records(versions: str = "0+", *, default: bytes | None = None, nullable: str | None = None) -> Any:
    """Record batches: read as a view into the frame, written as whatever part the sender can send (a file range, say)."""
    return _field("records", versions, default, nullable, None)


def array(
    of: Any,
    versions: str = "0+",
    *,
    default: list[Any] | type[list[Any]] | None = list,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    """A list of a primitive (`array(int32)`) or of a struct (`array(FetchTopic)`)."""
    return _field(_kind_of(of), versions, default, nullable, tag, tagged=tagged, is_array=True)


def struct(
    of: type[Struct],
    versions: str = "0+",
    *,
    default: Any = ...,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    return _field(of, versions, default, nullable, tag, tagged=tagged)


def _kind_of(of: Any) -> str | type[Struct]:
    if isinstance(of, type) and issubclass(of, Struct):
        return of
    name: str = of.__name__
    return {"boolean": "bool", "blob": "bytes"}.get(name, name)


@dataclass_transform()
class StructType(type):
    """Turns the fields of a class body into slots, and writes its `__init__`."""

    __fields__: dict[str, Field]

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> StructType:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        kept = {key: value for key, value in namespace.items() if key not in fields}
        kept["__slots__"] = tuple(fields)
        kept["__fields__"] = fields
        made = super().__new__(cls, name, bases, kept, **options)
        if fields:
            made.__init__ = _first_init(made, fields)  # type: ignore[misc]
        return made


_MISSING: Any = object()


def _first_init(made: StructType, fields: dict[str, Field]) -> Any:
    """Writes the real one when the first value is made: a process needs few of the hundreds of structs that it imports."""

    def init(self: Any, *values: Any, **named: Any) -> None:
        made.__init__ = real = _make_init(fields)  # type: ignore[misc]
        real(self, *values, **named)

    return init


def _make_init(fields: dict[str, Field]) -> Any:
    """A plain function, because values are made on the hot path. Lists and structs must be made anew for each value."""
    scope: dict[str, Any] = {"MISSING": _MISSING}
    parameters, body = [], []
    for index, (name, field) in enumerate(fields.items()):
        if field.is_array and field.default is list:
            parameters.append(f"{name}=MISSING")
            body.append(f"self.{name} = [] if {name} is MISSING else {name}")
        elif isinstance(field.kind, type) and field.default is ...:
            scope[f"S{index}"] = field.kind
            parameters.append(f"{name}=MISSING")
            body.append(f"self.{name} = S{index}() if {name} is MISSING else {name}")
        else:
            scope[f"D{index}"] = field.default
            parameters.append(f"{name}=D{index}")
            body.append(f"self.{name} = {name}")
    exec(f"def __init__(self, {', '.join(parameters)}):\n    " + "\n    ".join(body), scope)
    return scope["__init__"]


class Struct(metaclass=StructType):
    """A value inside a message."""

    __slots__ = ()
    __fields__: ClassVar[dict[str, Field]] = {}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__fields__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__fields__)
        return f"{type(self).__qualname__}({shown})"

    def replace(self, **changes: Any) -> Self:
        return type(self)(**{name: getattr(self, name) for name in self.__fields__} | changes)


class Message(Struct):
    """A whole message: a request, a response, or the key or value of an internal record."""

    __slots__ = ()
    TYPE_KEY: ClassVar[int] = -1  # the API key, or the type number of a metadata or coordinator record
    VERSIONS: ClassVar[Versions] = NO_VERSIONS
    FLEXIBLE: ClassVar[Versions] = NO_VERSIONS

    def __init_subclass__(cls, *, key: int = -1, versions: str = "none", flexible: str | None = None) -> None:
        super().__init_subclass__()
        cls.TYPE_KEY = key
        cls.VERSIONS = Versions.parse(versions)
        cls.FLEXIBLE = Versions.parse(flexible)
