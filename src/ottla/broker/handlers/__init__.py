"""One module per subject, twins of `protocol/messages`. Importing a module registers its handlers."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def load() -> None:
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
