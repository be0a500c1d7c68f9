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
        ({"node.id": "1", "log.dirs": "/a,/b"}, "log.dirs"),
        ({"node.id": "1", "log.dir": "/a,/b"}, "log.dir"),
        ({"node.id": "1", "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}, "authorizer"),
        ({"node.id": "1", "create.topic.policy.class.name": "com.example.Policy"}, "create.topic.policy.class.name"),
    ],
)
def test_a_wrong_property_is_named(properties: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        NodeConfig.from_properties(properties)


@pytest.mark.parametrize(
    ("listener", "protocols", "named"),
    [
        ("SSL", None, "SSL"),
        ("SASL_PLAINTEXT", None, "SASL_PLAINTEXT"),
        ("OUTSIDE", "OUTSIDE:SASL_SSL,CONTROLLER:PLAINTEXT", "SASL_SSL"),
        ("PLAINTEXT", "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT", "SSL"),
        ("PLAINTEXT", "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL", "CONTROLLER"),
        ("OUTSIDE", None, "listener.security.protocol.map"),
    ],
)
def test_a_listener_that_would_not_be_as_secure_as_it_is_called_is_refused(
    listener: str, protocols: str | None, named: str
) -> None:
    properties = {
        "node.id": "1",
        "listeners": f"{listener}://:9092,CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
    }
    if protocols is not None:
        properties["listener.security.protocol.map"] = protocols
    with pytest.raises(ConfigError, match=named):
        NodeConfig.from_properties(properties)


def test_listeners_have_names_of_ones_own() -> None:
    own = {"node.id": "1", "listeners": "OUTSIDE://:9092,VOTES://:9093", "controller.listener.names": "VOTES"}
    protocols = {"listener.security.protocol.map": "outside:plaintext,votes:plaintext"}
    assert NodeConfig.from_properties(own | protocols).listeners == (Endpoint("OUTSIDE", "", 9092),)


@pytest.mark.parametrize("escape", ["\\uzzzz", "\\u12", "\\u", "\\u0x1f", "\\u+123"])
def test_an_escape_without_four_digits_is_refused_as_by_java(escape: str) -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties(f"name=a{escape}")


def test_what_is_set_for_this_broker_goes_before_all_brokers_before_the_file() -> None:
    settings = Settings({"log.retention.hours": "1", "message.max.bytes": "1000"})
    assert settings.topic({})["retention.ms"] == 3_600_000
    settings.change({"message.max.bytes": "2000", "log.retention.ms": "5"}, {"message.max.bytes": "3000"})
    assert settings["message.max.bytes"] == 3000
    assert settings.topic({})["retention.ms"] == 5
    assert settings.topic({"retention.ms": "7"})["retention.ms"] == 7
    settings.change({}, {})
    assert settings["message.max.bytes"] == 1000
