"""What a node was told to be: its properties file, and the broker settings that change while it runs.

Three layers hold a broker setting: what was set for this broker at run time, what was set for all brokers at run time, and
the file. The strongest that is present wins; `Settings` keeps them merged, because the hot path reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.host.disk import Disk
from ottla.model.errors import OttlaError
from ottla.model.settings import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, InvalidSetting, Setting, effective

Voter = tuple[int, str, int]  # id, host, port
_FOUR_DIGITS = re.compile("[0-9a-fA-F]{4}")

# What Kafka would load: without it a node would let happen what its owner forbade.
PLUGINS = {
    "authorizer.class.name": "ACLs are not served, so everybody would be let in",
    "create.topic.policy.class.name": "policies are not served, so every topic would be allowed",
    "alter.config.policy.class.name": "policies are not served, so every change would be allowed",
}


class ConfigError(OttlaError):
    """One clear sentence for the person who wrote the file."""


class Endpoint(NamedTuple):
    """A listener, as NAME://host:port."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon or not port.isdigit():
            raise ConfigError(f"{text!r} is not a listener: write NAME://host:port, for example PLAINTEXT://localhost:9092")
        return cls(name.upper(), host.strip("[]"), int(port))


def read_properties(disk: Disk, path: str) -> dict[str, str]:
    try:
        return parse_properties(disk.read_all(path).decode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path} cannot be read as properties: {error}") from None


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file: comments, `=` or `:` or blanks as separator, lines continued by a backslash, escapes."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        end = next((at for at, char in enumerate(line) if char in "=: \t" and (at == 0 or line[at - 1] != "\\")), len(line))
        key, rest = line[:end], line[end:].lstrip(" \t")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t")
        properties[_unescape(key)] = _unescape(rest)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in text.splitlines():
        line = pending + raw.lstrip(" \t\f")
        pending = ""
        if not line or (line[0] in "#!" and line == raw.lstrip(" \t\f")):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        yield line
    if pending:
        yield pending


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out, at = [], 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            if text[at] == "u":
                digits = text[at + 1 : at + 5]
                if not _FOUR_DIGITS.fullmatch(digits):
                    raise ConfigError(f"\\u{digits} is no character: \\u needs four hexadecimal digits")
                out.append(chr(int(digits, 16)))
                at += 4
            else:
                out.append({"n": "\n", "t": "\t", "r": "\r", "f": "\f"}.get(text[at], text[at]))
        else:
            out.append(char)
        at += 1
    return "".join(out)


class Settings:
    """The broker settings in force. `settings[name]` is a parsed value; names are those of `BROKER_SETTINGS`."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.static = _parse_known(properties)
        self.for_all: dict[str, Any] = {}
        self.for_this: dict[str, Any] = {}
        self._merged: dict[str, Any] = {}
        self._merge()

    def __getitem__(self, name: str) -> Any:
        return self._merged[name]

    @property
    def merged(self) -> Mapping[str, Any]:
        return self._merged

    def change(self, for_all: Mapping[str, str], for_this: Mapping[str, str]) -> None:
        """The metadata log says what was set at run time; text that does not parse is left out."""
        self.for_all = _parse_valid(for_all)
        self.for_this = _parse_valid(for_this)
        self._merge()

    def _merge(self) -> None:
        self._merged = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
        self._merged |= self.static | self.for_all | self.for_this

    @property
    def explicit(self) -> Mapping[str, Any]:
        """Set by somebody rather than by default: what a topic setting may fall back to before its own default."""
        return self.static | self.for_all | self.for_this

    def topic(self, own: Mapping[str, str]) -> dict[str, Any]:
        """The effective settings of a topic with these settings of its own."""
        return self._fall_back(TOPIC_SETTINGS, own)

    def group(self, own: Mapping[str, str]) -> dict[str, Any]:
        return self._fall_back(GROUP_SETTINGS, own)

    def _fall_back(self, table: Mapping[str, Setting], own: Mapping[str, str]) -> dict[str, Any]:
        explicit = self.explicit
        return {name: effective(setting, own, explicit) for name, setting in table.items()}


def _parse_known(properties: Mapping[str, str]) -> dict[str, Any]:
    parsed = {}
    for name, text in properties.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            continue  # Kafka, too, lets properties pass that it does not know: plugins read them
        try:
            parsed[name] = setting.parse(text)
        except InvalidSetting as error:
            raise ConfigError(str(error)) from None
    return parsed


def _parse_valid(properties: Mapping[str, str]) -> dict[str, Any]:
    parsed = {}
    for name, text in properties.items():
        if name in BROKER_SETTINGS:
            try:
                parsed[name] = BROKER_SETTINGS[name].parse(text)
            except InvalidSetting:
                continue
    return parsed


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The part of the properties that cannot change while the node runs."""

    node_id: int
    roles: tuple[str, ...]
    listeners: tuple[Endpoint, ...]  # of the broker
    advertised: tuple[Endpoint, ...]
    controller_listeners: tuple[Endpoint, ...]
    voters: tuple[Voter, ...]
    bootstrap_servers: tuple[tuple[str, int], ...]  # of the quorum, where its voters are in the log
    directory: str
    metadata_directory: str
    rack: str | None
    inter_broker_listener: str
    controller_listener_names: tuple[str, ...]
    settings: Settings

    @property
    def listeners_of_nodes(self) -> frozenset[str]:
        """Where only brokers and controllers come: not where brokers share their clients' listener."""
        own = {self.inter_broker_listener} if len(self.listeners) > 1 else set()
        return frozenset(own | {endpoint.name for endpoint in self.controller_listeners})

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> NodeConfig:
        _check_plugins(properties)
        settings = Settings(properties)
        node_id = settings["node.id"] if settings["node.id"] is not None else settings["broker.id"]
        if node_id is None or node_id < 0:
            raise ConfigError("node.id is missing: give this node a number of its own, for example node.id=1")
        roles = settings["process.roles"] or ("broker", "controller")
        controller_names = tuple(name.upper() for name in settings["controller.listener.names"] or ("CONTROLLER",))
        endpoints = [Endpoint.parse(text) for text in settings["listeners"]]
        listeners = tuple(endpoint for endpoint in endpoints if endpoint.name not in controller_names)
        advertised = _advertised(settings, listeners)
        _check_security(settings, [*endpoints, *advertised], controller_names)
        directory = _only_directory(settings)
        if "broker" in roles and not listeners:
            raise ConfigError("a broker needs a listener for its clients: listeners=PLAINTEXT://localhost:9092")
        voters = tuple(_voter(text) for text in settings["controller.quorum.voters"])
        if "controller" not in roles and any(voter_id == node_id for voter_id, _, _ in voters):
            raise ConfigError(f"node {node_id} is a broker only, and controller.quorum.voters names it: choose another node.id")
        if "controller" in roles:
            _check_own_vote(node_id, voters, [e for e in endpoints if e.name in controller_names], settings)
        return cls(
            node_id=node_id,
            roles=roles,
            listeners=listeners if "broker" in roles else (),
            advertised=advertised,
            controller_listeners=tuple(e for e in endpoints if e.name in controller_names) if "controller" in roles else (),
            voters=voters,
            bootstrap_servers=tuple(_address(text) for text in settings["controller.quorum.bootstrap.servers"]),
            directory=directory,
            metadata_directory=settings["metadata.log.dir"] or directory,
            rack=settings["broker.rack"],
            inter_broker_listener=(
                settings["inter.broker.listener.name"] or (listeners[0].name if listeners else "PLAINTEXT")
            ).upper(),
            controller_listener_names=controller_names,
            settings=settings,
        )


def _check_plugins(properties: Mapping[str, str]) -> None:
    for name, why in PLUGINS.items():
        if properties.get(name, "").strip():
            raise ConfigError(f"{name} is set, and {why}")


def _only_directory(settings: Settings) -> str:
    name = "log.dirs" if settings["log.dirs"] else "log.dir"
    directories = settings[name]
    if len(directories) != 1:
        raise ConfigError(f"{name} names {len(directories)} folders ({', '.join(directories)}), and a node keeps its data in one")
    return str(directories[0])


def security_protocol(settings: Settings, listener: str) -> str | None:
    """None for a listener of which listener.security.protocol.map does not speak."""
    pairs = (pair.partition(":") for pair in settings["listener.security.protocol.map"].split(","))
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}.get(listener)


def _check_security(settings: Settings, endpoints: Iterable[Endpoint], controller_names: tuple[str, ...]) -> None:
    """A listener that is called secure must not be served without."""
    for name in [endpoint.name for endpoint in endpoints]:
        protocol = security_protocol(settings, name) or ("PLAINTEXT" if name in controller_names else None)
        if protocol is None:
            raise ConfigError(
                f"listeners has one named {name}, and listener.security.protocol.map does not say which security it has"
            )
        if protocol != "PLAINTEXT":
            raise ConfigError(
                f"listeners has {name} with {protocol}, and only PLAINTEXT is served: nothing would be encrypted, and nobody asked who he is"
            )


def _advertised(settings: Settings, listeners: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """A listener on all addresses must be told to clients by some name; the machine's own is the usual one."""
    if settings["advertised.listeners"]:
        return tuple(Endpoint.parse(text) for text in settings["advertised.listeners"])
    return tuple(Endpoint(e.name, "localhost" if e.host in ("", "0.0.0.0", "::") else e.host, e.port) for e in listeners)


def _check_own_vote(node_id: int, voters: tuple[Voter, ...], own: list[Endpoint], settings: Settings) -> None:
    """A controller must be where the voters look for it. One that is not would be a second voter with the same id: two of one
    id can make two leaders of one epoch, and nothing later would notice."""
    if len({voter_id for voter_id, _, _ in voters}) < len(voters):
        raise ConfigError("controller.quorum.voters names one id twice: " + ", ".join(f"{v}@{h}:{p}" for v, h, p in voters))
    if not voters or not own:
        return
    found = next((voter for voter in voters if voter[0] == node_id), None)
    if found is None:
        ids = ", ".join(str(voter_id) for voter_id, _, _ in voters)
        raise ConfigError(f"this controller is node {node_id}, and controller.quorum.voters names only {ids}")
    advertised = [Endpoint.parse(text) for text in settings["advertised.listeners"] or ()]
    ports = {endpoint.port for endpoint in [*own, *(e for e in advertised if e.name in {o.name for o in own})]}
    if 0 not in ports and found[2] not in ports:
        raise ConfigError(
            f"controller.quorum.voters has node {node_id} at {found[1]}:{found[2]}, but its listener for controllers is on port "
            f"{', '.join(map(str, sorted(ports)))}: is node {node_id} another machine?"
        )


def _voter(text: str) -> Voter:
    number, at, address = text.partition("@")
    if not at or not number.isdigit():
        raise ConfigError(f"{text!r} is not a voter: controller.quorum.voters is a list of id@host:port")
    return int(number), *_address(address)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"{text!r} is not an address: write host:port")
    return host.strip("[]"), int(port)
