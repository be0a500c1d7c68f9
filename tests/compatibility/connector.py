"""Spark's own Kafka connector, the peer of `format("ottla")`: its jars, fetched once with Maven into `.cache`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
FETCH_LIMIT_S = 300
_FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "spark-kafka-connector"


class NoConnector(Exception):
    """The connector could not be fetched; the message says why."""


def connector_jars() -> list[Path]:
    """Raises NoConnector."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    found = []
    for group, artifact, version in JARS:
        path = _FOLDER / f"{artifact}-{version}.jar"
        if not path.exists():
            _fetch(f"{group}:{artifact}:{version}")
        found.append(path)
    return found


def _fetch(coordinates: str) -> None:
    """Maven puts it into its own repository first, and a second goal copies it from there."""
    maven = shutil.which("mvn")
    if maven is None:
        raise NoConnector("Maven (mvn) is needed to fetch Spark's Kafka connector")
    for goal in (
        ["dependency:get", f"-Dartifact={coordinates}", "-Dtransitive=false"],
        ["dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={_FOLDER}"],
    ):
        try:
            done = subprocess.run([maven, "-q", "-B", *goal], capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise NoConnector(f"Maven did not fetch {coordinates} within {FETCH_LIMIT_S} s") from None
        if done.returncode:
            raise NoConnector(f"Maven could not fetch {coordinates}: {(done.stdout + done.stderr).strip()[-300:]}")
