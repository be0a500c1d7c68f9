"""ApiVersions 0-4 and the telemetry requests.

ApiVersions: 3 client software and features, flexible; 4 feature ranges that begin at 0. The telemetry requests are not
advertised, as a Kafka broker without a metrics plugin does not advertise them; a client that sends them all the same is declined.
"""

from __future__ import annotations

from ottla.broker.dispatch import RequestContext, handles, served_by
from ottla.metadata.features import SERVED_LEVELS
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)

PRODUCE_KEY = 0
NOT_ADVERTISED = frozenset({71, 72})


@handles("ApiVersions", roles=("broker", "controller"))
def api_versions(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    if context.version >= 3:
        if not _is_software_name(request.client_software_name) or not _is_software_name(request.client_software_version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.session["software"] = (request.client_software_name, request.client_software_version)
    role = "controller" if context.listener in context.node.config.controller_listener_names else "broker"
    image = context.node.image
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=key,
                # Older librdkafka concludes from Produce 0 that a broker can do compression.
                min_version=0 if key == PRODUCE_KEY else served.api.versions.first,
                max_version=served.api.versions.last,
            )
            for key, served in sorted(served_by(role).items())
            if key not in NOT_ADVERTISED
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
            for name, levels in sorted(SERVED_LEVELS.items())
            if levels.lowest > 0 or context.version >= 4
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.features.items())
            if level > 0
        ],
    )


def _is_software_name(name: str) -> bool:
    """KIP-511: letters, digits, dots and dashes, beginning and ending with a letter or digit."""
    return (
        bool(name) and all(c.isascii() and (c.isalnum() or c in "-.") for c in name) and name[0].isalnum() and name[-1].isalnum()
    )


@handles("GetTelemetrySubscriptions")
def get_telemetry_subscriptions(
    request: GetTelemetrySubscriptionsRequest, context: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    return GetTelemetrySubscriptionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)


@handles("PushTelemetry")
def push_telemetry(request: PushTelemetryRequest, context: RequestContext) -> PushTelemetryResponse:
    return PushTelemetryResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
