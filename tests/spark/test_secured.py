"""A cluster that asks who is there: every client of source, sink and ledger gets the `kafka.*` settings of security."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from ottla import sync
from ottla.spark.exactly_once import ExactlyOnceWriter
from ottla.spark.options import OptionError, parse
from ottla.spark.source import BatchReader
from ottla.spark.task import Task
from tests.client.test_security import secured as secured  # an Apache Kafka with a SASL and a TLS listener

LOG_IN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";'
VALUES = StructType().add("value", StringType())


@pytest.mark.kafka
@pytest.mark.parametrize("door", ["sasl", "tls"])
def test_sink_ledger_and_source_are_let_in(secured: tuple[str, str, str, str], door: str) -> None:
    plain, sasl, tls, certificate = secured
    given = {
        "sasl": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LOG_IN},
        "tls": {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": certificate},
    }[door]
    cluster = {"kafka.bootstrap.servers": sasl if door == "sasl" else tls} | {
        f"kafka.{name}": text for name, text in given.items()
    }
    with sync.Admin(bootstrap_servers=plain) as admin:
        admin.create_topic(f"behind-{door}", 1, 1)
    writer = ExactlyOnceWriter(parse(cluster | {"topic": f"behind-{door}"}, reading=False), VALUES)
    rows = iter([pa.record_batch([pa.array(["a", "b"])], names=["value"])])
    message = sync.run(writer._write(rows, Task(f"query-{door}", 0, 0, 0)))
    writer.commit([message], 0)
    reader = BatchReader(parse(cluster | {"subscribe": f"behind-{door}"}, reading=True))
    found: list[Any] = [row["value"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [b"a", b"b"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
            "kafka.sasl.jaas.config must give",
        ),
        ({"kafka.ssl.truststore.location": "trust.jks"}, "kafka.ssl.truststore.location is a Java keystore"),
        (
            {"kafka.ssl.keystore.key": "-----BEGIN"},
            "ssl.keystore.key is not taken as text: give a file, with kafka.ssl.keystore.location",
        ),
        ({"kafka.transactional.id": "mine"}, "kafka.transactional.id is set by the source itself"),
    ],
)
def test_what_cannot_be_passed_on_is_refused_by_name(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse({"kafka.bootstrap.servers": "localhost:1", "subscribe": "a"} | given, reading=True)


def test_a_password_of_digits_stays_text() -> None:
    made = parse({"kafka.bootstrap.servers": "localhost:1", "topic": "a", "kafka.sasl.password": "12345"}, reading=False)
    assert made.client == {"sasl_password": "12345"}
