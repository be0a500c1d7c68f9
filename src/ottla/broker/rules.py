"""What the controller may ask about settings: the table of `model.settings` in the form that its machine wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.broker.config import Settings
from ottla.metadata.image import BROKER, GROUP, TOPIC
from ottla.metadata.state import EffectiveConfig
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.settings import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    InvalidSetting,
    Kind,
    Setting,
    effective,
    synonym_chain,
)

# Where a value comes from, with DescribeConfigs' numbers.
TOPIC_SOURCE, BROKER_SOURCE, ALL_BROKERS_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE, GROUP_SOURCE = 1, 2, 3, 4, 5, 8
TABLES: Mapping[int, Mapping[str, Setting]] = {TOPIC: TOPIC_SETTINGS, BROKER: BROKER_SETTINGS, GROUP: GROUP_SETTINGS}


class Rules:
    """Implements `metadata.state.SettingsRules` for a node with these settings of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def check(self, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
        table = TABLES.get(resource_type)
        if table is None:
            return
        for name, text in values.items():
            setting = table.get(name)
            if setting is None:
                if resource_type == BROKER:
                    continue  # a plugin's, or a newer version's
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown {_WORDS[resource_type]} config name: {name}")
            try:
                setting.parse(text)
            except InvalidSetting as error:
                raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if resource_type == TOPIC:
            _check_together(values)
        if resource_type == BROKER:
            _check_dynamic(values, bool(resource_name))
        if resource_type == GROUP:
            self._check_group(values)

    def _check_group(self, values: Mapping[str, str]) -> None:
        """A group's own settings stay within the limits that the broker sets for all groups."""
        for name in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
            own, word = f"consumer.{name}", ""
            if own not in values:
                continue
            value = GROUP_SETTINGS[own].parse(values[own])
            least, most = f"group.consumer.min.{name}", f"group.consumer.max.{name}"
            if least in BROKER_SETTINGS and value < self._settings[least]:
                word = f"greater than or equal to {least}"
            elif most in BROKER_SETTINGS and value > self._settings[most]:
                word = f"less than or equal to {most}"
            if word:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"{own} must be {word}")
        effective_values = self._settings.group(values)
        if effective_values["consumer.session.timeout.ms"] <= effective_values["consumer.heartbeat.interval.ms"]:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
            )

    def is_list(self, resource_type: int, setting: str) -> bool:
        found = TABLES.get(resource_type, {}).get(setting)
        return found is not None and found.kind is Kind.LIST

    def default_value(self, resource_type: int, setting: str) -> str | None:
        found = TABLES.get(resource_type, {}).get(setting)
        return None if found is None else found.text(effective(found, {}, self._settings.static))

    def effective_topic_configs(
        self, overrides: Mapping[str, str], node: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterable[EffectiveConfig]:
        for setting in TOPIC_SETTINGS.values():
            if setting.name in overrides:
                yield EffectiveConfig(setting.name, overrides[setting.name], TOPIC_SOURCE)
                continue
            value, source = setting.text(effective(setting, {}, self._settings.explicit)), DEFAULT_SOURCE
            for name, _, _ in synonym_chain(setting, self._settings.explicit):
                source = BROKER_SOURCE if name in node else ALL_BROKERS_SOURCE if name in cluster else STATIC_SOURCE
                break
            yield EffectiveConfig(setting.name, value, source)


_WORDS = {TOPIC: "topic", GROUP: "group"}


def _check_together(values: Mapping[str, str]) -> None:
    """Settings that are right each alone and wrong together."""
    if "min.compaction.lag.ms" in values or "max.compaction.lag.ms" in values:
        least = TOPIC_SETTINGS["min.compaction.lag.ms"].parse(values.get("min.compaction.lag.ms", "0"))
        most = TOPIC_SETTINGS["max.compaction.lag.ms"]
        limit = most.parse(values["max.compaction.lag.ms"]) if "max.compaction.lag.ms" in values else most.default
        if least > limit:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({limit})",
            )
    if values.get("remote.storage.enable", "false").lower() == "true":
        raise ApiError(ErrorCode.INVALID_CONFIG, "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.")  # fmt: skip


def _check_dynamic(values: Mapping[str, str], for_one: bool) -> None:
    fixed = [name for name in values if name in BROKER_SETTINGS and BROKER_SETTINGS[name].dynamic == "read-only"]
    if fixed:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {_set(fixed)}")
    single = [name for name in values if name in BROKER_SETTINGS and BROKER_SETTINGS[name].dynamic == "per-broker"]
    if single and not for_one:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs at default cluster level, broker id must be specified: {_set(single)}",
        )


def _set(names: list[str]) -> str:
    return f"[{', '.join(names)}]"
