"""Properties are read as Java reads them, and a wrong one is one clear sentence."""

from __future__ import annotations

import pytest

from ottla.broker.config import ConfigError, Endpoint, NodeConfig, Settings, parse_properties


def test_properties_are_read_as_java_reads_them() -> None:
    text = """
    # a comment
    ! another
    node.id=1
    log.dirs : /data/a,\\
        /data/b
    name\\ with\\=signs = caf\\u00e9
    blank value
    empty=
    """
    assert parse_properties(text) == {
        "node.id": "1",
        "log.dirs": "/data/a,/data/b",
        "name with=signs": "café",
        "blank": "value",
        "empty": "",
    }


def test_listeners_are_split_between_broker_and_controller() -> None:
    config = NodeConfig.from_properties(
        {
            "node.id": "3",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@a:9093,3@127.0.0.1:9093",
        }
    )
    assert config.listeners == (Endpoint("PLAINTEXT", "", 9092),)
    assert config.advertised == (Endpoint("PLAINTEXT", "localhost", 9092),)
    assert config.controller_listeners == (Endpoint("CONTROLLER", "127.0.0.1", 9093),)
    assert config.voters == ((1, "a", 9093), (3, "127.0.0.1", 9093))


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({}, "node.id"),
        ({"node.id": "x"}, "node.id"),
        ({"node.id": "1", "listeners": "9092"}, "listener"),
        ({"node.id": "1", "controller.quorum.voters": "localhost:9093"}, "id@host:port"),
        ({"node.id": "1", "log.segment.bytes": "12"}, "log.segment.bytes"),
        ({"node.id": "1", "compression.type": "zip"}, "compression.type"),
    ],
)
def test_a_wrong_property_is_named(properties: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        NodeConfig.from_properties(properties)


def test_what_is_set_for_this_broker_goes_before_all_brokers_before_the_file() -> None:
    settings = Settings({"log.retention.hours": "1", "message.max.bytes": "1000"})
    assert settings.topic({})["retention.ms"] == 3_600_000
    settings.change({"message.max.bytes": "2000", "log.retention.ms": "5"}, {"message.max.bytes": "3000"})
    assert settings["message.max.bytes"] == 3000
    assert settings.topic({})["retention.ms"] == 5
    assert settings.topic({"retention.ms": "7"})["retention.ms"] == 7
    settings.change({}, {})
    assert settings["message.max.bytes"] == 1000
