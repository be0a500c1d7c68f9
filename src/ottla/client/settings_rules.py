"""Settings that do not go together: each rule looks at the resolved settings and at what the user gave, and may change or refuse.

The combinations and their consequences are those of Kafka's own clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ottla.client.errors import SettingError

Rule = Callable[[dict[str, Any], Mapping[str, Any]], None]

MAX_IDEMPOTENT_IN_FLIGHT = 5  # brokers remember the last five batches of a producer (KIP-185)
_DURATION = re.compile(r"by_duration:P(?:\d+D)?(?:T(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?$")


def _acks_number(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    acks = settings["acks"]
    settings["acks"] = -1 if acks == "all" else int(acks)


def _idempotence(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    in_flight = settings["max_in_flight_requests_per_connection"]
    wanted = given.get("enable_idempotence")
    obstacle = None
    if settings["acks"] != -1:
        obstacle = f"acks=all, not acks={given['acks']}"
    elif settings["retries"] == 0:
        obstacle = "retries of at least 1"
    elif in_flight > MAX_IDEMPOTENT_IN_FLIGHT:
        obstacle = f"max_in_flight_requests_per_connection of at most {MAX_IDEMPOTENT_IN_FLIGHT}, not {in_flight}"
    if obstacle and wanted:
        raise SettingError(f"enable_idempotence needs {obstacle}")
    settings["enable_idempotence"] = obstacle is None if wanted is None else wanted
    if settings["transactional_id"] is not None and not settings["enable_idempotence"]:
        raise SettingError(f"transactional_id needs {obstacle or 'enable_idempotence=True'}")
    if settings["transactional_id"] == "":
        raise SettingError("transactional_id must not be empty; leave it out for a producer without transactions")


def _delivery_time(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    least = settings["linger_ms"] + settings["request_timeout_ms"]
    if settings["delivery_timeout_ms"] < least:
        if "delivery_timeout_ms" in given:
            raise SettingError(
                f"delivery_timeout_ms must be at least linger_ms + request_timeout_ms = {least:g}, not {settings['delivery_timeout_ms']:g}"
            )
        settings["delivery_timeout_ms"] = least


def _partitioner(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    partitioner = settings["partitioner"]
    if isinstance(partitioner, str) and partitioner not in ("default", "round_robin"):
        raise SettingError(f"partitioner must be default, round_robin or a function, not {partitioner!r}")


def _group(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    if settings["group_id"] == "":
        raise SettingError("group_id must not be empty; leave it out for a consumer without a group")
    if settings["group_id"] is None:
        if given.get("enable_auto_commit"):
            raise SettingError("enable_auto_commit needs a group_id: offsets are committed for a group")
        if settings["group_instance_id"] is not None:
            raise SettingError("group_instance_id needs a group_id")
        settings["enable_auto_commit"] = False
    if settings["group_protocol"] == "consumer":
        for name in ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms"):
            if name in given:
                raise SettingError(f"{name} belongs to group_protocol=classic; with consumer the broker decides it")
    elif settings["group_remote_assignor"] is not None:
        raise SettingError("group_remote_assignor belongs to group_protocol=consumer")


def _timing(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    if settings["group_protocol"] == "classic" and settings["heartbeat_interval_ms"] >= settings["session_timeout_ms"]:
        raise SettingError(
            f"heartbeat_interval_ms ({settings['heartbeat_interval_ms']}) must be lower than "
            f"session_timeout_ms ({settings['session_timeout_ms']}), best a third of it"
        )


def _offset_reset(settings: dict[str, Any], given: Mapping[str, Any]) -> None:
    reset = settings["auto_offset_reset"]
    if reset in ("earliest", "latest", "none") or (_DURATION.match(reset) and reset[-1] not in "PT:"):
        return
    raise SettingError(f"auto_offset_reset must be earliest, latest, none or by_duration:PT1H (ISO 8601), not {reset!r}")


PRODUCER_RULES: tuple[Rule, ...] = (_acks_number, _idempotence, _delivery_time, _partitioner)
CONSUMER_RULES: tuple[Rule, ...] = (_group, _timing, _offset_reset)


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration such as `P1DT2H` or `PT0.5S`."""
    match = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text)
    if match is None:
        raise SettingError(f"{text!r} is not an ISO 8601 duration such as PT1H")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
