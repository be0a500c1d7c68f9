"""DescribeConfigs 1-4 and ListConfigResources 0-1. Changing settings is the controller's (`topics`).

DescribeConfigs: 1 sources and synonyms; 3 types and documentation; 4 flexible. ListConfigResources: 0 client metrics only; 1 any type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.rules import (
    ALL_BROKERS_SOURCE,
    BROKER_SOURCE,
    DEFAULT_SOURCE,
    GROUP_SOURCE,
    STATIC_SOURCE,
    TABLES,
    TOPIC_SOURCE,
)
from ottla.metadata.image import BROKER, CLIENT_METRICS, GROUP, TOPIC
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.settings import BROKER_SETTINGS, Setting
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

Result = DescribeConfigsResponse.DescribeConfigsResult
Row = Result.DescribeConfigsResourceResult
Synonym = Row.DescribeConfigsSynonym
BROKER_LOGGER = 8


@handles("DescribeConfigs", roles=("broker", "controller"))
def describe_configs(request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_describe(resource, request, context) for resource in request.resources])


def _describe(
    resource: DescribeConfigsRequest.DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
) -> Result:
    result = Result(resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None)
    try:
        own_source, own, is_default = _own(resource.resource_type, resource.resource_name, context)
        wanted = resource.configuration_keys
        for setting in TABLES.get(resource.resource_type, {}).values():
            if wanted is not None and setting.name not in wanted:
                continue
            if is_default and setting.name not in own:
                continue  # the default of all brokers has only what was set
            synonyms = list(_synonyms(setting, own, own_source, context))
            result.configs.append(_row(setting, synonyms, resource.resource_type, request, context))
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _own(kind: int, name: str, context: RequestContext) -> tuple[int, Mapping[str, str], bool]:
    """What was set for the resource itself, the source that this is, and whether it is the default of all brokers."""
    image = context.node.image
    if kind == TOPIC:
        if name not in image.topic_ids:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return TOPIC_SOURCE, image.configs.get((TOPIC, name), {}), False
    if kind == BROKER:
        if name and not _is_node(name, context):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {context.node.node_id} or empty string, but received {name}",
            )
        source = BROKER_SOURCE if name else ALL_BROKERS_SOURCE
        return source, image.configs.get((BROKER, name), {}), not name
    if kind == GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return GROUP_SOURCE, image.configs.get((GROUP, name), {}), False
    if kind == BROKER_LOGGER:
        return 6, {}, False
    if kind == CLIENT_METRICS:
        return 7, image.configs.get((CLIENT_METRICS, name), {}), False
    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _is_node(name: str, context: RequestContext) -> bool:
    try:
        return int(name) == context.node.node_id
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None


def _synonyms(
    setting: Setting, own: Mapping[str, str], own_source: int, context: RequestContext
) -> Iterator[tuple[str, str | None, int]]:
    """Everything that could give the value, the strongest first: the value in force is the first of them."""
    if setting.name in own:
        yield setting.name, own[setting.name], own_source
    is_broker = own_source in (BROKER_SOURCE, ALL_BROKERS_SOURCE)
    settings = context.node.settings
    for name, factor in ((setting.name, 1),) if is_broker else setting.synonyms:
        layers = (
            (settings.for_this, BROKER_SOURCE),
            (settings.for_all, ALL_BROKERS_SOURCE),
            (settings.static, STATIC_SOURCE),
        )
        for layer, source in layers:
            if layer.get(name) is not None and not (is_broker and source == own_source):
                yield name, BROKER_SETTINGS[name].text(_scaled(layer[name], factor)), source
        default = BROKER_SETTINGS[name].default
        if default is not None:
            yield name, BROKER_SETTINGS[name].text(_scaled(default, factor)), DEFAULT_SOURCE
    if not is_broker and not setting.synonyms:
        yield setting.name, setting.text(setting.default), DEFAULT_SOURCE


def _scaled(value: Any, factor: int) -> Any:
    return value * factor if factor != 1 and value >= 0 else value


def _row(
    setting: Setting,
    synonyms: list[tuple[str, str | None, int]],
    kind: int,
    request: DescribeConfigsRequest,
    context: RequestContext,
) -> Row:
    _, value, source = synonyms[0] if synonyms else (setting.name, setting.text(setting.default), DEFAULT_SOURCE)
    row = Row(
        name=setting.name,
        value=value,
        read_only=kind == BROKER and setting.dynamic == "read-only",
        config_source=source,
        config_type=setting.kind,
        documentation=setting.meaning if request.include_documentation else None,
    )
    if request.include_synonyms:
        row.synonyms = [Synonym(name=name, value=text, source=where) for name, text, where in synonyms]
    return row


@handles("ListConfigResources")
def list_config_resources(request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
    image = context.node.image
    supported = {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
    wanted = {CLIENT_METRICS} if context.version == 0 else set(request.resource_types) or supported
    if not wanted <= supported:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: set[tuple[int, str]] = set()
    if TOPIC in wanted:
        found |= {(TOPIC, name) for name in image.topic_ids}
    for kind in wanted & {BROKER, BROKER_LOGGER}:
        found |= {(kind, str(broker_id)) for broker_id in image.brokers}
    found |= {(kind, name) for kind, name in image.configs if kind in wanted & {CLIENT_METRICS, GROUP}}
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind) for kind, name in sorted(found)
        ]
    )
