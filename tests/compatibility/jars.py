"""Apache Kafka 4.3's jars: fetched once with Maven into `.cache`, or taken from where `OTTLA_KAFKA_JARS` points."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

KAFKA_VERSION = "4.3.0"
_ROOT = Path(__file__).resolve().parents[2]
_POM = Path(__file__).with_name("pom.xml")
FETCH_LIMIT_S = 600


class NoKafka(Exception):
    """Apache Kafka could not be fetched or started; the message says why in one sentence."""


@cache
def jar_directory() -> Path:
    """The folder with all jars. The first call on a fresh checkout downloads about 120 MB."""
    if given := os.environ.get("OTTLA_KAFKA_JARS"):
        folder = Path(given)
    else:
        folder = _ROOT / ".cache" / f"kafka-{KAFKA_VERSION}"
        if not folder.is_dir():
            _fetch(folder)
    if not (folder / f"kafka-clients-{KAFKA_VERSION}.jar").is_file():
        raise NoKafka(f"{folder} does not hold the jars of Apache Kafka {KAFKA_VERSION}")
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoKafka("Maven (mvn) is needed to fetch Apache Kafka; or point OTTLA_KAFKA_JARS to its jars")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")  # a broken download must not look like a whole one
    command = [maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoKafka(f"Maven did not fetch Apache Kafka within {FETCH_LIMIT_S} s") from None
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise NoKafka(f"Maven could not fetch Apache Kafka: {(done.stdout + done.stderr).strip()[-500:]}")
    try:
        partial.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(partial, ignore_errors=True)


def class_path() -> str:
    return str(jar_directory() / "*")
