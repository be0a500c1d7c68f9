"""Quotas per client, user and address."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, boolean, float64, int8, int16, int32, string


class DescribeClientQuotasRequest(Message, key=48, versions="0-1", flexible="1+"):
    class ComponentData(Struct):
        entity_type: str = string()
        match_type: int = int8()
        match: str | None = string(nullable="0+")

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class DescribeClientQuotasResponse(Message, key=48, versions="0-1", flexible="1+"):
    class EntryData(Struct):
        class EntityData(Struct):
            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        class ValueData(Struct):
            key: str = string()
            value: float = float64()

        entity: list[EntityData] = array(EntityData)
        values: list[ValueData] = array(ValueData)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entries: list[EntryData] | None = array(EntryData, nullable="0+")


class AlterClientQuotasRequest(Message, key=49, versions="0-1", flexible="1+"):
    class EntryData(Struct):
        class EntityData(Struct):
            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        class OpData(Struct):
            key: str = string()
            value: float = float64()
            remove: bool = boolean()

        entity: list[EntityData] = array(EntityData)
        ops: list[OpData] = array(OpData)

    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class AlterClientQuotasResponse(Message, key=49, versions="0-1", flexible="1+"):
    class EntryData(Struct):
        class EntityData(Struct):
            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        error_code: int = int16()
        error_message: str | None = string(nullable="0+")
        entity: list[EntityData] = array(EntityData)

    throttle_time_ms: int = int32()
    entries: list[EntryData] = array(EntryData)
