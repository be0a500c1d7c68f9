"""Groups of any type, seen from outside."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, blob, boolean, int16, int32, string


class DescribeGroupsRequest(Message, key=15, versions="0-6", flexible="5+"):
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean("3+")


class DescribeGroupsResponse(Message, key=15, versions="0-6", flexible="5+"):
    class DescribedGroup(Struct):
        class DescribedGroupMember(Struct):
            member_id: str = string()
            group_instance_id: str | None = string("4+", nullable="4+", default=None)
            client_id: str = string()
            client_host: str = string()
            member_metadata: bytes = blob()
            member_assignment: bytes = blob()

        error_code: int = int16()
        error_message: str | None = string("6+", nullable="6+", default=None)
        group_id: str = string()
        group_state: str = string()
        protocol_type: str = string()
        protocol_data: str = string()
        members: list[DescribedGroupMember] = array(DescribedGroupMember)
        authorized_operations: int = int32("3+", default=-2147483648)

    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array(DescribedGroup)


class ListGroupsRequest(Message, key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


class ListGroupsResponse(Message, key=16, versions="0-5", flexible="3+"):
    class ListedGroup(Struct):
        group_id: str = string()
        protocol_type: str = string()
        group_state: str = string("4+")
        group_type: str = string("5+")

    throttle_time_ms: int = int32("1+")
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


class DeleteGroupsRequest(Message, key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = array(string)


class DeleteGroupsResponse(Message, key=42, versions="0-2", flexible="2+"):
    class DeletableGroupResult(Struct):
        group_id: str = string()
        error_code: int = int16()

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
