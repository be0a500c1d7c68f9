"""Writes docs/API.md from the docstrings: `python -m tests.docs.reference`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ottla
from ottla.client import errors, settings
from ottla.client.delivery import Delivery, RecordMetadata
from ottla.client.listener import RebalanceListener
from ottla.client.positions import ConsumerRecord
from ottla.embedded.cluster import EmbeddedCluster
from ottla.embedded.node import EmbeddedNode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "API.md"
HEAD = """# API reference

Printed from the docstrings by `python -m tests.docs.reference`. `ottla.sync` has `Producer`, `Consumer` and `Admin` with the same methods,
without `await`.
"""
CLASSES = [ottla.Producer, Delivery, RecordMetadata, ottla.Consumer, ConsumerRecord, RebalanceListener, ottla.Admin]
EMBEDDED = [EmbeddedCluster, EmbeddedNode]
SETTINGS = [settings.CommonSettings, settings.ProducerSettings, settings.ConsumerSettings]


def reference() -> str:
    parts = [HEAD]
    for each in CLASSES:
        parts += _class(each)
    parts.append("## Settings\n\nKafka's names in snake case, checked when a client is made.\n")
    for each in SETTINGS:
        parts += _settings(each)
    parts.append(
        "## Errors\n\nEverything raised on purpose is an `OttlaError`; what a broker refused is an `ApiError` with Kafka's `code`.\n"
    )
    parts.append("| error | when |\n|---|---|")
    parts += [f"| `{name}` | {_first(found)} |" for name, found in vars(errors).items() if _is_own_error(found)]
    parts.append("\n# For tests\n")
    for each in EMBEDDED:
        parts += _class(each)
    return "\n".join(parts).rstrip() + "\n"


def _class(found: Any) -> Iterator[str]:
    module = inspect.getmodule(found)
    yield f"## {found.__name__}\n"
    own = inspect.getdoc(found) if found.__doc__ and not found.__doc__.startswith(f"{found.__name__}(") else None
    yield (own or (module.__doc__ or "").strip()) + "\n"
    for name, member in inspect.getmembers(found):
        if name.startswith("_") or name in ("count", "index") or not (callable(member) or isinstance(member, property)):
            continue
        yield f"### {found.__name__}.{name}\n"
        if not isinstance(member, property):
            awaited = "await " if inspect.iscoroutinefunction(member) else ""
            yield f"    {awaited}{name}{_signature(member)}\n"
        if document := inspect.getdoc(member):
            yield document + "\n"


def _signature(member: Any) -> str:
    try:
        return str(inspect.signature(member)).replace("self, ", "").replace("(self)", "()").replace("'", "")
    except (TypeError, ValueError):
        return "(…)"


def _settings(found: Any) -> Iterator[str]:
    yield f"### {found.__name__}\n\n| setting | default | |\n|---|---|---|"
    inherited = {
        name
        for base in SETTINGS
        if base is not found and found is not settings.CommonSettings
        for name in base.__annotations__
        if base is settings.CommonSettings
    }
    for name, hint in typing.get_type_hints(found, include_extras=True).items():
        if name not in inherited:
            setting = hint.__metadata__[0]
            yield f"| `{name}` | `{setting.default}` | {setting.meaning} |"
    yield ""


def _is_own_error(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Exception) and found.__module__ == errors.__name__


def _first(found: Any) -> str:
    return (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(reference())
