"""ottla: Kafka for Python and Spark people.

    from ottla import Producer, Consumer, Admin   # asyncio
    import ottla.sync                             # the same, without asyncio

Everything is loaded on first use, so that `import ottla` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.consumer import Consumer
    from ottla.client.listener import RebalanceListener
    from ottla.client.producer import Producer
    from ottla.model.errors import ApiError, OttlaError
    from ottla.model.ids import TopicPartition

__version__ = "0.1.0"
__all__ = ["Admin", "ApiError", "Consumer", "OttlaError", "Producer", "RebalanceListener", "TopicPartition", "__version__"]

_HOMES = {
    "Admin": "ottla.client.admin",
    "ApiError": "ottla.model.errors",
    "Consumer": "ottla.client.consumer",
    "OttlaError": "ottla.model.errors",
    "Producer": "ottla.client.producer",
    "RebalanceListener": "ottla.client.listener",
    "TopicPartition": "ottla.model.ids",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
