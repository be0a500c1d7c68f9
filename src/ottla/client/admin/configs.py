"""Settings of topics, brokers and groups."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ottla.client.admin.base import AdminBase, error_of, raise_code, settle
from ottla.client.admin.types import (
    AlterOperation,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ResourceType,
)
from ottla.model.errors import ApiError
from ottla.protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest, ListConfigResourcesRequest


class ConfigsAdmin(AdminBase):
    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Collection[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        shares: dict[int | None, list[ConfigResource]] = {}
        for resource in resources:
            shares.setdefault(_only_broker(resource), []).append(resource)
        done: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        failed: dict[ConfigResource, ApiError] = {}

        async def ask(broker: int | None, share: list[ConfigResource]) -> None:
            kind = DescribeConfigsRequest.DescribeConfigsResource
            keys = None if names is None else sorted(names)
            rows = [kind(resource_type=each.type, resource_name=each.name, configuration_keys=keys) for each in share]
            request = DescribeConfigsRequest(resources=rows, include_synonyms=synonyms, include_documentation=documentation)
            reply = await self._persist(lambda: self._cluster.ask(broker, request))
            for row in reply.results:
                resource = ConfigResource(ResourceType(row.resource_type), row.resource_name)
                if error := error_of(row.error_code, row.error_message):
                    failed[resource] = error
                else:
                    done[resource] = {config.name: _entry(config) for config in row.configs}

        await asyncio.gather(*(ask(broker, share) for broker, share in shares.items()))
        return settle(done, failed)

    async def topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        resource = ConfigResource.topic(topic)
        return (await self.describe_configs([resource]))[resource]

    async def broker_configs(self, broker_id: int | None = None) -> dict[str, ConfigEntry]:
        """What one broker runs with; None asks for the dynamic defaults of all."""
        resource = ConfigResource.broker(broker_id)
        return (await self.describe_configs([resource]))[resource]

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Collection[ConfigChange]], *, validate_only: bool = False
    ) -> None:
        """Change single settings and leave the others alone (KIP-339)."""
        done: dict[ConfigResource, None] = {}
        failed: dict[ConfigResource, ApiError] = {}
        shares: dict[int | None, list[ConfigResource]] = {}
        for resource in changes:
            shares.setdefault(_only_broker(resource), []).append(resource)
        for broker, share in shares.items():
            request = IncrementalAlterConfigsRequest(
                resources=[_alteration(resource, changes[resource]) for resource in share], validate_only=validate_only
            )
            reply = await self._alter(broker, request)
            for row in reply.responses:
                resource = ConfigResource(ResourceType(row.resource_type), row.resource_name)
                if error := error_of(row.error_code, row.error_message):
                    failed[resource] = error
                else:
                    done[resource] = None
        settle(done, failed)

    async def _alter(self, broker: int | None, request: IncrementalAlterConfigsRequest) -> Any:
        if broker is not None:
            return await self._persist(lambda: self._cluster.ask(broker, request))
        return await self._ask_controller(request, lambda reply: (row.error_code for row in reply.responses))

    async def set_topic_configs(self, topic: str, configs: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Set these of a topic's settings; None gives a setting its default back."""
        changes = [
            ConfigChange(name, value, AlterOperation.DELETE if value is None else AlterOperation.SET)
            for name, value in configs.items()
        ]
        await self.alter_configs({ConfigResource.topic(topic): changes}, validate_only=validate_only)

    async def list_config_resources(self, types: Collection[ResourceType] = ()) -> tuple[ConfigResource, ...]:
        reply = await self._ask_any(ListConfigResourcesRequest(resource_types=list(types)))
        raise_code(reply.error_code)
        return tuple(ConfigResource(ResourceType(row.resource_type), row.resource_name) for row in reply.config_resources)


def _only_broker(resource: ConfigResource) -> int | None:
    """A broker's own settings can only be asked of that broker."""
    own = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name
    return int(resource.name) if own else None


def _entry(row: Any) -> ConfigEntry:
    return ConfigEntry(
        row.name,
        row.value,
        _source(row.config_source),
        row.read_only,
        row.is_sensitive,
        ConfigType(row.config_type) if row.config_type in ConfigType._value2member_map_ else ConfigType.UNKNOWN,
        row.documentation,
        tuple(ConfigSynonym(each.name, each.value, _source(each.source)) for each in row.synonyms),
    )


def _source(number: int) -> ConfigSource:
    return ConfigSource(number) if number in ConfigSource._value2member_map_ else ConfigSource.UNKNOWN


def _alteration(
    resource: ConfigResource, changes: Collection[ConfigChange]
) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    kind = IncrementalAlterConfigsRequest.AlterConfigsResource
    return kind(
        resource_type=resource.type,
        resource_name=resource.name,
        configs=[
            kind.AlterableConfig(name=change.name, config_operation=change.operation, value=change.value) for change in changes
        ],
    )
