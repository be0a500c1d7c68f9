"""What Spark needs and is not there is one sentence that says what to do, before any Java process is started."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import ottla
from ottla.spark import session
from ottla.spark.session import SparkUnavailable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path


def install_java(home: Path, says: str) -> None:
    """A `java` that tells its version as the real one does: on standard error."""
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'.'\n{says}\n.\n")
    program.chmod(0o755)


def install_pyspark(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """None: it cannot be imported."""
    monkeypatch.setitem(sys.modules, "pyspark", None if version is None else types.SimpleNamespace(__version__=version))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)', 8),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=3\nopenjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_of_java_is_told_from_what_it_says(home: Path, says: str, version: int | None) -> None:
    install_java(home, says)
    assert session.java_version() == version


def test_java_that_is_missing_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SparkUnavailable, match=r"^Spark needs Java 17 or newer, and none was found; install one, or set JAVA_HOME$"
    ):
        session.check()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(SparkUnavailable, match="none was found"):
        session.check()


def test_java_that_is_too_old_is_one_sentence(home: Path) -> None:
    install_java(home, 'openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(
        SparkUnavailable, match=r"^Spark needs Java 17 or newer, and this is Java 11; set JAVA_HOME to a newer one$"
    ):
        session.check()


def test_pyspark_that_is_missing_or_too_old_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(home, 'openjdk version "17.0.15" 2025-04-15')
    install_pyspark(monkeypatch, None)
    with pytest.raises(SparkUnavailable, match=r"^PySpark is not installed: pip install 'ottla\[spark\]'$"):
        session.check()
    for old in ("3.5.7", "4.2.0"):
        install_pyspark(monkeypatch, old)
        with pytest.raises(SparkUnavailable, match=rf"^PySpark 4\.3 or newer is needed, and this is {old}: pip install -U"):
            session.check()
    for new in ("4.3.0", "4.10.1.dev0", "5.0.0"):
        install_pyspark(monkeypatch, new)
        session.check()


def test_a_command_ends_with_the_sentence(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "spark-pipeline.yml").write_text(f"name: none\nstorage: {(tmp_path / 'storage').as_uri()}\nlibraries: []\n")
    environment = os.environ | {"PYTHONPATH": str(Path(ottla.__file__).parents[1])}
    run = [sys.executable, "-m", "ottla", "pipeline", "run"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ottla: Spark needs Java 17 or newer, and none was found; install one, or set JAVA_HOME"
    assert "Traceback" not in done.stdout + done.stderr
