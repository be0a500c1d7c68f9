"""Quotas altered: AlterClientQuotas (0-1). An entity is a user, a client id, both, or an address; None as a name is the default."""

from __future__ import annotations

import math
from ipaddress import ip_address

from ottla.metadata.image import QuotaEntity
from ottla.metadata.records import MetadataRecord
from ottla.metadata.snapshot import quota_record
from ottla.metadata.state import Context, ControllerState, Outcome
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.quotas import AlterClientQuotasRequest, AlterClientQuotasResponse

USER, CLIENT_ID, IP = "user", "client-id", "ip"
MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1

# Quota keys by kind of entity: the largest whole number allowed, or None where fractions are allowed too.
_CLIENT_KEYS: dict[str, int | None] = {
    "producer_byte_rate": MAX_LONG,
    "consumer_byte_rate": MAX_LONG,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_ADDRESS_KEYS: dict[str, int | None] = {"connection_creation_rate": MAX_INT}

Entry = AlterClientQuotasRequest.EntryData


def alter_client_quotas(state: ControllerState, request: AlterClientQuotasRequest, context: Context) -> Outcome:
    row = AlterClientQuotasResponse.EntryData
    records: list[MetadataRecord] = []
    entries = []
    seen: set[QuotaEntity] = set()
    for entry in request.entries:
        answer = row(
            error_message=None,
            entity=[row.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity],
        )
        try:
            records += _alter(state, entry, seen)
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, error.message
        entries.append(answer)
    return Outcome([] if request.validate_only else records, AlterClientQuotasResponse(entries=entries))


def _alter(state: ControllerState, entry: Entry, seen: set[QuotaEntity]) -> list[MetadataRecord]:
    entity = _entity(entry)
    if entity in seen:
        raise _invalid(f"Ignoring duplicate entity {_text(entity)}")
    seen.add(entity)
    keys = _keys(dict(entity))
    present = state.image.quotas.get(entity, {})
    records: list[MetadataRecord] = []
    named: set[str] = set()
    for operation in entry.ops:
        if operation.key in named:
            raise _invalid(f"Duplicate quota key {operation.key} not updating quota for this entity {_text(entity)}")
        named.add(operation.key)
        if operation.remove:
            if operation.key in present:
                records.append(quota_record(entity, operation.key, None))
            continue
        _check_value(keys, operation.key, operation.value)
        if present.get(operation.key) != operation.value:
            records.append(quota_record(entity, operation.key, operation.value))
    return records


def _entity(entry: Entry) -> QuotaEntity:
    if not entry.entity:
        raise _invalid("Invalid empty client quota entity")
    parts: dict[str, str | None] = {}
    for part in entry.entity:
        if part.entity_type in parts:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {part.entity_type}")
        if part.entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_name == "":
            raise _invalid(f"Empty {part.entity_type} not supported")
        parts[part.entity_type] = part.entity_name
    return frozenset(parts.items())


def _keys(parts: dict[str, str | None]) -> dict[str, int | None]:
    if IP not in parts:
        return _CLIENT_KEYS
    if len(parts) > 1:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    address = parts[IP]
    if address is not None and not _is_address(address):
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return _ADDRESS_KEYS


def _is_address(text: str) -> bool:
    """Not a host's name: what a controller decides hangs on no name server."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(keys: dict[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    limit = keys[key]
    if limit is None:
        return
    if value > limit:
        raise _invalid(f"Proposed value for {key} is too large for {'an INT' if limit == MAX_INT else 'a LONG'}.")
    if abs(math.fmod(value, 1.0)) > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value.")


def _text(entity: QuotaEntity) -> str:
    return "ClientQuotaEntity(entries={" + ", ".join(f"{kind}={name}" for kind, name in sorted(entity, key=str)) + "})"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
