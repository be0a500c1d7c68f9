from __future__ import annotations

import subprocess
import sys

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import parse_servers
from ottla.client.errors import SettingError
from ottla.client.settings import AdminSettings, ConsumerSettings, ProducerSettings, resolve, table
from ottla.client.settings_rules import duration_ms
from ottla.model.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (ProducerSettings, {"linger": 3}, "did you mean linger_ms"),
        (ProducerSettings, {"linger.ms": 3}, "did you mean linger_ms"),
        (ConsumerSettings, {"auto_commit_interval": 3}, "did you mean auto_commit_interval_ms"),
        (ConsumerSettings, {"bootstrap.server": "a:1"}, "did you mean bootstrap_servers"),
        (AdminSettings, {"batch_size": 1}, "Admin has no setting batch_size"),
        (ProducerSettings, {"batch_size": "16k"}, "must be a whole number"),
        (ProducerSettings, {"batch_size": True}, "must be a whole number"),
        (ProducerSettings, {"linger_ms": -1}, "at least 0"),
        (ProducerSettings, {"compression_type": "lz"}, "did you mean lz4"),
        (ProducerSettings, {"acks": 2}, "must be one of"),
        (ProducerSettings, {"acks": 1, "enable_idempotence": True}, "needs acks=all"),
        (ProducerSettings, {"acks": 1, "transactional_id": "t"}, "transactional_id needs acks=all"),
        (ProducerSettings, {"max_in_flight_requests_per_connection": 6, "enable_idempotence": True}, "at most 5"),
        (ProducerSettings, {"delivery_timeout_ms": 10, "request_timeout_ms": 10}, "at least linger_ms"),
        (ProducerSettings, {"key_serializer": 5}, "must be a function"),
        (ProducerSettings, {"partitioner": "sticky"}, "default, round_robin or a function"),
        (ConsumerSettings, {"auto_offset_reset": "begin"}, "auto_offset_reset must be"),
        (ConsumerSettings, {"auto_offset_reset": "by_duration:1h"}, "auto_offset_reset must be"),
        (ConsumerSettings, {"enable_auto_commit": True}, "needs a group_id"),
        (ConsumerSettings, {"group_id": "g", "session_timeout_ms": 100, "heartbeat_interval_ms": 100}, "must be lower"),
        (ConsumerSettings, {"group_id": "g", "group_protocol": "consumer", "session_timeout_ms": 100}, "group_protocol=classic"),
        (ConsumerSettings, {"group_protocol": "streams"}, "must be one of"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(kind, given, says):
    with pytest.raises(SettingError, match=says):
        resolve(kind, given)


def test_defaults_are_kafkas():
    settings = resolve(ProducerSettings, {})
    assert settings["acks"] == -1
    assert settings["enable_idempotence"] is True
    assert settings["batch_size"] == 16384
    assert settings["delivery_timeout_ms"] == 120_000
    assert resolve(ConsumerSettings, {})["enable_auto_commit"] is False
    assert resolve(ConsumerSettings, {"group_id": "g"})["enable_auto_commit"] is True


def test_weaker_acks_switch_idempotence_off():
    assert resolve(ProducerSettings, {"acks": 1})["enable_idempotence"] is False
    assert resolve(ProducerSettings, {"acks": "0"})["acks"] == 0


def test_every_setting_says_what_it_is_for():
    for kind in (ProducerSettings, ConsumerSettings, AdminSettings):
        for name, (_, setting) in table(kind).items():
            assert setting.meaning, name


def test_addresses_are_checked_before_anything_is_sent():
    assert parse_servers("a:1, b:2") == [("a", 1), ("b", 2)]
    assert parse_servers(["[::1]:9092"]) == [("::1", 9092)]
    for wrong in ("a", "a:", ":1", "a:x", "a:70000", "", "a:1,b"):
        with pytest.raises(SettingError):
            parse_servers(wrong)


def test_durations_are_iso_8601():
    assert duration_ms("P1DT2H") == 26 * 3_600_000
    assert duration_ms("PT0.5S") == 500
    with pytest.raises(SettingError):
        duration_ms("1h")


async def test_sasl_without_a_user_is_refused():
    with pytest.raises(SettingError, match="sasl_username"):
        Admin(security_protocol="SASL_PLAINTEXT")


def test_every_error_code_says_what_it_means_and_what_to_do():
    for code in ErrorCode:
        assert code.meaning.endswith("."), code
        assert "\n" not in code.meaning
    assert str(ApiError(ErrorCode.NOT_CONTROLLER)) == f"NOT_CONTROLLER: {ErrorCode.NOT_CONTROLLER.meaning}"


def test_importing_ottla_loads_nothing():
    code = "import sys; before = set(sys.modules); import ottla; print(*sorted(m for m in set(sys.modules) - before if 'ottla' in m or m == 'asyncio'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["ottla"]
