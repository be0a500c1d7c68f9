"""Ids that a cluster hands out."""

from __future__ import annotations

from ottla.model.ids import DIRECTORY_LOST, random_uuid, uuid_text


def test_an_id_is_never_reserved_and_never_looks_like_an_option_of_a_command_line() -> None:
    like_an_option = b"\xf8" + bytes(15)
    assert uuid_text(like_an_option).startswith("-")
    good = b"\x01" * 16
    drawn = iter([DIRECTORY_LOST, like_an_option, good])
    assert random_uuid(lambda size: next(drawn)) == good
