"""DescribeConfigs 1-4 and ListConfigResources 0-1. Changing settings is the controller's (`topics`).

DescribeConfigs: 1 sources and synonyms; 3 types and documentation; 4 flexible. ListConfigResources: 0 client metrics only; 1 any type.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile

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
from ottla.model.names import check_topic_name
from ottla.model.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Setting, effective
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
_KINDS = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


@handles("DescribeConfigs", roles=("broker", "controller"))
def describe_configs(request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    if any(resource.resource_type not in _KINDS for resource in request.resources):
        return DescribeConfigsResponse(results=[_refused(resource) for resource in request.resources])
    return DescribeConfigsResponse(results=[_describe(resource, request, context) for resource in request.resources])


def _refused(resource: DescribeConfigsRequest.DescribeConfigsResource) -> Result:
    """A kind that does not exist makes the whole request one that cannot be understood."""
    return Result(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="the request names a kind of resource that does not exist",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _describe(
    resource: DescribeConfigsRequest.DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
) -> Result:
    result = Result(resource_type=resource.resource_type, resource_name=resource.resource_name, error_message="")
    try:
        own_source, own, is_default = _own(resource.resource_type, resource.resource_name, context)
        wanted = resource.configuration_keys or None
        for setting in TABLES.get(resource.resource_type, {}).values():
            if wanted is not None and setting.name not in wanted:
                continue
            if is_default and setting.name not in own:
                continue  # the default of all brokers has only what was set
            synonyms = _synonyms(setting, own, own_source, context)
            result.configs.append(_row(setting, synonyms, own, resource.resource_type, request, context))
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _own(kind: int, name: str, context: RequestContext) -> tuple[int, Mapping[str, str], bool]:
    """What was set for the resource itself, the source that this is, and whether it is the default of all brokers."""
    image = context.node.image
    if kind == TOPIC:
        check_topic_name(name)
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
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return 7, image.configs.get((CLIENT_METRICS, name), {}), False
    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _is_node(name: str, context: RequestContext) -> bool:
    try:
        return int(name) == context.node.node_id
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None


def _synonyms(
    setting: Setting, own: Mapping[str, str], own_source: int, context: RequestContext
) -> list[tuple[str, str | None, int]]:
    """What was set, the strongest first: name, value, source.

    Kafka looks through the layers for every synonym and then drops what comes before the setting's first name: a default of
    `log.retention.hours` is no synonym of `retention.ms` unless `log.retention.ms` is set too.
    """
    is_broker = own_source in (BROKER_SOURCE, ALL_BROKERS_SOURCE)
    names = _FAMILIES.get(setting.name, (setting.name,)) if is_broker else tuple(name for name, _ in setting.synonyms)
    settings = context.node.settings
    defaults = {name: BROKER_SETTINGS[name].default for name in names}
    layers = (
        (settings.for_this, BROKER_SOURCE),
        (settings.for_all, ALL_BROKERS_SOURCE),
        (settings.static, STATIC_SOURCE),
        (defaults, DEFAULT_SOURCE),
    )
    found = [
        (name, BROKER_SETTINGS[name].text(layer[name]), source)
        for layer, source in layers
        for name in names
        if layer.get(name) is not None
    ]
    first = setting.name if is_broker else names[0] if names else ""
    found = list(dropwhile(lambda row: row[0] != first, found))
    if own_source == ALL_BROKERS_SOURCE:
        return [row for row in found if row[2] == ALL_BROKERS_SOURCE]
    if is_broker or setting.name not in own:
        return found
    return [(setting.name, own[setting.name], own_source), *found]


# Broker settings that are one another's synonyms, the finest unit first.
_FAMILIES = {
    name: family for setting in TOPIC_SETTINGS.values() for family in [tuple(n for n, _ in setting.synonyms)] for name in family
}


def _row(
    setting: Setting,
    synonyms: list[tuple[str, str | None, int]],
    own: Mapping[str, str],
    kind: int,
    request: DescribeConfigsRequest,
    context: RequestContext,
) -> Row:
    _, value, source = synonyms[0] if synonyms else (setting.name, setting.text(setting.default), DEFAULT_SOURCE)
    if kind != BROKER:
        value = setting.text(effective(setting, own, context.node.settings.explicit))
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
