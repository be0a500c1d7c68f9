"""Who may do what, and how much of it: ACLs, SCRAM credentials, client quotas."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ottla.client.admin.base import AdminBase, error_of, raise_code, settle
from ottla.model.errors import ApiError
from ottla.protocol.apis import Operation, Resource
from ottla.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from ottla.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
)

ANY = 1  # of resource types, operations, permissions and pattern types alike
SCRAM_ITERATIONS = 8192
SALT_BYTES = 24


class PatternType(IntEnum):
    ANY = 1
    MATCH = 2  # in a filter: whatever would apply to the name
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


class ScramMechanism(IntEnum):
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True)
class Acl:
    """`principal` is `User:name`; `host` an address or `*`."""

    resource: Resource
    name: str
    principal: str
    operation: Operation
    permission: Permission = Permission.ALLOW
    host: str = "*"
    pattern: PatternType = PatternType.LITERAL


@dataclass(frozen=True, slots=True)
class AclFilter:
    """None matches everything."""

    resource: Resource | None = None
    name: str | None = None
    principal: str | None = None
    operation: Operation | None = None
    permission: Permission = Permission.ANY
    host: str | None = None
    pattern: PatternType = PatternType.ANY


@dataclass(frozen=True, slots=True)
class ScramCredential:
    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Whom a quota is for: `user`, `client-id` or `ip` → name; a name of None is the default of its kind."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, **parts: str | None) -> QuotaEntity:
        """`QuotaEntity.of(user="alice", client_id=None)`."""
        return cls(tuple(sorted((kind.replace("_", "-"), name) for kind, name in parts.items())))


class SecurityAdmin(AdminBase):
    async def describe_acls(self, wanted: AclFilter | None = None) -> tuple[Acl, ...]:
        wanted = wanted or AclFilter()
        reply = await self._ask_any(
            DescribeAclsRequest(
                resource_type_filter=wanted.resource or ANY,
                resource_name_filter=wanted.name,
                pattern_type_filter=wanted.pattern,
                principal_filter=wanted.principal,
                host_filter=wanted.host,
                operation=wanted.operation or ANY,
                permission_type=wanted.permission,
            )
        )
        raise_code(reply.error_code, reply.error_message)
        return tuple(
            Acl(
                Resource(row.resource_type),
                row.resource_name,
                acl.principal,
                Operation(acl.operation),
                Permission(acl.permission_type),
                acl.host,
                PatternType(row.pattern_type),
            )
            for row in reply.resources
            for acl in row.acls
        )

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        wanted = list(acls)
        kind = CreateAclsRequest.AclCreation
        rows = [
            kind(
                resource_type=acl.resource,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in wanted
        ]
        reply = await self._ask_controller(
            CreateAclsRequest(creations=rows), lambda reply: (row.error_code for row in reply.results)
        )
        done: dict[Acl, None] = {}
        failed: dict[Acl, ApiError] = {}
        for acl, row in zip(wanted, reply.results, strict=True):
            if error := error_of(row.error_code, row.error_message):
                failed[acl] = error
            else:
                done[acl] = None
        settle(done, failed)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> tuple[Acl, ...]:
        """Delete whatever matches one of the filters; returns what was deleted."""
        kind = DeleteAclsRequest.DeleteAclsFilter
        rows = [
            kind(
                resource_type_filter=each.resource or ANY,
                resource_name_filter=each.name,
                pattern_type_filter=each.pattern,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation or ANY,
                permission_type=each.permission,
            )
            for each in filters
        ]
        reply = await self._ask_controller(
            DeleteAclsRequest(filters=rows), lambda reply: (row.error_code for row in reply.filter_results)
        )
        deleted = []
        for result in reply.filter_results:
            raise_code(result.error_code, result.error_message)
            for row in result.matching_acls:
                raise_code(row.error_code, row.error_message)
                deleted.append(
                    Acl(
                        Resource(row.resource_type),
                        row.resource_name,
                        row.principal,
                        Operation(row.operation),
                        Permission(row.permission_type),
                        row.host,
                        PatternType(row.pattern_type),
                    )
                )
        return tuple(deleted)

    # Credentials -------------------------------------------------------------------------------------------------------

    async def describe_scram_credentials(self, users: Iterable[str] | None = None) -> dict[str, tuple[ScramCredential, ...]]:
        kind = DescribeUserScramCredentialsRequest.UserName
        rows = None if users is None else [kind(name=user) for user in users]
        reply = await self._ask_any(DescribeUserScramCredentialsRequest(users=rows))
        raise_code(reply.error_code, reply.error_message)
        done: dict[str, tuple[ScramCredential, ...]] = {}
        failed: dict[str, ApiError] = {}
        for row in reply.results:
            if error := error_of(row.error_code, row.error_message):
                failed[row.user] = error
            else:
                done[row.user] = tuple(
                    ScramCredential(ScramMechanism(info.mechanism), info.iterations) for info in row.credential_infos
                )
        return settle(done, failed)

    async def set_scram_password(
        self,
        user: str,
        password: str,
        mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256,
        iterations: int = SCRAM_ITERATIONS,
    ) -> None:
        """The password never leaves this process: only what SCRAM derives from it does."""
        salt = self._cluster.world.random.bytes(SALT_BYTES)
        digest = "sha256" if mechanism is ScramMechanism.SCRAM_SHA_256 else "sha512"
        row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=user,
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            salted_password=hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations),
        )
        await self._alter_scram(AlterUserScramCredentialsRequest(upsertions=[row]))

    async def delete_scram_credential(self, user: str, mechanism: ScramMechanism) -> None:
        row = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=mechanism)
        await self._alter_scram(AlterUserScramCredentialsRequest(deletions=[row]))

    async def _alter_scram(self, request: AlterUserScramCredentialsRequest) -> None:
        reply = await self._ask_controller(request, lambda reply: (row.error_code for row in reply.results))
        for row in reply.results:
            raise_code(row.error_code, row.error_message)

    # Quotas ------------------------------------------------------------------------------------------------------------

    async def describe_client_quotas(self, **match: str | None) -> dict[QuotaEntity, dict[str, float]]:
        """All quotas, or those of entities with this `user`, `client_id` or `ip`; None asks for the default of that kind."""
        kind = DescribeClientQuotasRequest.ComponentData
        rows = [
            kind(entity_type=name.replace("_", "-"), match_type=1 if value is None else 0, match=value)
            for name, value in match.items()
        ]
        reply = await self._ask_any(DescribeClientQuotasRequest(components=rows))
        raise_code(reply.error_code, reply.error_message)
        return {_entity(row.entity): {value.key: value.value for value in row.values} for row in reply.entries or ()}

    async def alter_client_quotas(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> None:
        """Set quotas such as producer_byte_rate; None removes one."""
        kind = AlterClientQuotasRequest.EntryData
        rows = []
        for entity, changes in quotas.items():
            operations = [kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()]
            names = [kind.EntityData(entity_type=what, entity_name=name) for what, name in entity.parts]
            rows.append(kind(entity=names, ops=operations))
        request = AlterClientQuotasRequest(entries=rows, validate_only=validate_only)
        reply = await self._ask_controller(request, lambda reply: (row.error_code for row in reply.entries))
        done: dict[QuotaEntity, None] = {}
        failed: dict[QuotaEntity, ApiError] = {}
        for row in reply.entries:
            if error := error_of(row.error_code, row.error_message):
                failed[_entity(row.entity)] = error
            else:
                done[_entity(row.entity)] = None
        settle(done, failed)


def _entity(parts: Any) -> QuotaEntity:
    return QuotaEntity(tuple(sorted((part.entity_type, part.entity_name) for part in parts)))
