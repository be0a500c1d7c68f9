"""How each request is answered when it fails as a whole: the code at the top of the response, or, where there is no such place,
at everything the request named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.model.errors import ApiError, ProtocolError
from ottla.protocol.apis import Api
from ottla.protocol.messages import configs, metadata, quotas, topics
from ottla.protocol.schema import Message


def _create_topics(request: topics.CreateTopicsRequest, code: int, message: str | None) -> Message:
    row = topics.CreateTopicsResponse.CreatableTopicResult
    return topics.CreateTopicsResponse(
        topics=[row(name=topic.name, error_code=code, error_message=message) for topic in request.topics]
    )


def _delete_topics(request: topics.DeleteTopicsRequest, code: int, message: str | None) -> Message:
    row = topics.DeleteTopicsResponse.DeletableTopicResult
    named = [row(name=name, error_code=code, error_message=message) for name in request.topic_names]
    named += [row(name=each.name, topic_id=each.topic_id, error_code=code, error_message=message) for each in request.topics]
    return topics.DeleteTopicsResponse(responses=named)


def _create_partitions(request: topics.CreatePartitionsRequest, code: int, message: str | None) -> Message:
    row = topics.CreatePartitionsResponse.CreatePartitionsTopicResult
    return topics.CreatePartitionsResponse(
        results=[row(name=topic.name, error_code=code, error_message=message) for topic in request.topics]
    )


def _alter_configs(request: configs.AlterConfigsRequest, code: int, message: str | None) -> Message:
    row = configs.AlterConfigsResponse.AlterConfigsResourceResponse
    return configs.AlterConfigsResponse(
        responses=[
            row(resource_type=each.resource_type, resource_name=each.resource_name, error_code=code, error_message=message)
            for each in request.resources
        ]
    )


def _incremental_alter_configs(request: configs.IncrementalAlterConfigsRequest, code: int, message: str | None) -> Message:
    row = configs.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return configs.IncrementalAlterConfigsResponse(
        responses=[
            row(resource_type=each.resource_type, resource_name=each.resource_name, error_code=code, error_message=message)
            for each in request.resources
        ]
    )


def _alter_client_quotas(request: quotas.AlterClientQuotasRequest, code: int, message: str | None) -> Message:
    row = quotas.AlterClientQuotasResponse.EntryData
    return quotas.AlterClientQuotasResponse(
        entries=[
            row(
                error_code=code,
                error_message=message,
                entity=[row.EntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity],
            )
            for entry in request.entries
        ]
    )


def _metadata(request: metadata.MetadataRequest, code: int, message: str | None) -> Message:
    """Its place at the top exists only since version 13; before, the topics bear it."""
    row = metadata.MetadataResponse.MetadataResponseTopic
    return metadata.MetadataResponse(
        error_code=code,
        topics=[row(name=topic.name or "", topic_id=topic.topic_id, error_code=code) for topic in request.topics or ()],
    )


_REFUSALS: dict[type[Message], Callable[[Any, int, str | None], Message]] = {
    topics.CreateTopicsRequest: _create_topics,
    topics.DeleteTopicsRequest: _delete_topics,
    topics.CreatePartitionsRequest: _create_partitions,
    configs.AlterConfigsRequest: _alter_configs,
    configs.IncrementalAlterConfigsRequest: _incremental_alter_configs,
    quotas.AlterClientQuotasRequest: _alter_client_quotas,
    metadata.MetadataRequest: _metadata,
}


def refusal(request: Message, api: Api, error: ApiError) -> Message:
    """The response that says so. Raises ProtocolError, which closes the connection, where Kafka too has no way to say it."""
    special = _REFUSALS.get(type(request))
    if special is not None:
        return special(request, int(error.code), error.message)
    response: Any = api.response()
    if not hasattr(response, "error_code"):
        raise ProtocolError(f"{api.name} cannot be answered with {error}")
    response.error_code = int(error.code)
    if hasattr(response, "error_message"):
        response.error_message = error.message
    return response  # type: ignore[no-any-return]
