"""A Spark session that finds ottla: Java looked for, this interpreter for the workers, nothing printed that nobody asked for."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ottla.model.errors import OttlaError

Result = TypeVar("Result")
OLDEST_JAVA = 17
_QUIET = os.path.join(os.path.dirname(__file__), "log4j2.properties")
# Spark never asks for a row that a batch does not have, and asks whether a value is null before it takes it. Arrow would ask both
# again, for every value of every row: a sixth of what the JVM does to read a topic.
_TRUSTING_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_WORKER_PYTHON = os.path.join(os.path.dirname(__file__), "worker-python")
JAVA_ANSWER_S = 30
JVM_ENDS_S = 10  # after which it is killed


class SparkUnavailable(OttlaError):
    """Java or PySpark is missing or too old: one sentence that says what to install."""


SMALL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    # Over TCP, Spark's JVM writes a task to its Python worker in two pieces, and the second waits 40 ms for the first to be
    # acknowledged: in every task, which is most of what a small one takes.
    "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
}


def java_version() -> int | None:
    """The major version of the Java that Spark would start; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    return None if found is None else int(found[2] or 8) if found[1] == "1" else int(found[1])


def check() -> None:
    """Raises SparkUnavailable."""
    version = java_version()
    if version is None:
        raise SparkUnavailable(f"Spark needs Java {OLDEST_JAVA} or newer, and none was found; install one, or set JAVA_HOME")
    if version < OLDEST_JAVA:
        raise SparkUnavailable(
            f"Spark needs Java {OLDEST_JAVA} or newer, and this is Java {version}; set JAVA_HOME to a newer one"
        )
    try:
        import pyspark
    except ImportError:
        raise SparkUnavailable("PySpark is not installed: pip install 'ottla[spark]'") from None
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 3):
        raise SparkUnavailable(
            f"PySpark 4.3 or newer is needed, and this is {pyspark.__version__}: pip install -U 'ottla[spark]'"
        )


def ship(spark: Any) -> str:
    """Give the executors of a cluster the ottla of this process, by one call after the session is made; returns the archive's path.

    The packages that ottla needs and that are not pure Python (numpy, pyarrow, crc32c, cramjam) must be in the Python of the
    executors: installed there, or sent along as an archive (`spark.archives`)."""
    path = _packed()
    if type(spark).__module__.startswith("pyspark.sql.connect"):  # such a session has no context
        spark.addArtifacts(path, pyfile=True)
    else:
        spark.sparkContext.addPyFile(path)
    return path


def _packed() -> str:
    import ottla
    import pyspark_ottla

    folder = tempfile.mkdtemp(prefix="ottla-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "ottla.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in (ottla, pyspark_ottla):
            root = os.path.dirname(os.path.abspath(module.__file__ or ""))
            for place, _, names in os.walk(root):
                for name in names:
                    if not name.endswith((".pyc", ".pyo")):
                        full = os.path.join(place, name)
                        archive.write(full, os.path.relpath(full, os.path.dirname(root)))
    return path


def prepare_environment(is_local: bool = True) -> None:
    """Without PYSPARK_PYTHON Spark would start the system's Python, which knows nothing of ottla."""
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if os.environ.get(name, _WORKER_PYTHON) == _WORKER_PYTHON:  # or an earlier session in this process was a local one
            os.environ[name] = _local_python() if is_local else sys.executable
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={_QUIET} {_TRUSTING_ARROW}")


def _local_python() -> str:
    """Spark puts `pyspark.zip` first in its workers' path, and what is imported from an archive is compiled each time: half of the
    second that each kind of worker, and each streaming query, takes to start. A PySpark that pip installed lies there compiled."""
    import pyspark

    home = os.path.dirname(os.path.abspath(pyspark.__file__))
    is_installed = os.path.dirname(home) == sysconfig.get_path("purelib")
    if os.name != "posix" or not is_installed or not os.access(_WORKER_PYTHON, os.X_OK):
        return sys.executable
    os.environ.update(OTTLA_PYSPARK=home, OTTLA_WORKER_PYTHON=sys.executable)
    return _WORKER_PYTHON


@contextlib.contextmanager
def said_to(log: Path) -> Iterator[None]:
    """A process that is started now has the file as its standard error: the JVM, and the workers it starts later, keep it.

    What they say there is for who looks for a cause: stack traces come before our sentences, and PySpark's workers complain of every
    query that is stopped.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def aside(work: Callable[[], Result]) -> Result:
    """Do it in another thread, so that Ctrl-C ends the waiting for it and nothing else.

    In the main thread it would break off a talk with the JVM half-way; and PySpark, if its session is made there, answers Ctrl-C with a
    talk of its own in the middle of that one, which ends in a stack trace. What is asked of the JVM goes on: whoever stops the queries
    and the session ends it.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-spark")
    try:
        return thread.submit(work).result()
    finally:
        thread.shutdown(wait=False)


def end_jvm() -> None:
    """Without asking it by way of Python: whatever waits for an answer may have been broken off in the middle of a talk."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return
    process.terminate()
    try:
        process.wait(JVM_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def session(name: str, master: str = "local[2]", settings: Mapping[str, str] | None = None) -> Any:
    """A small local session unless told otherwise. On a cluster its own settings count, and executors must reach this host."""
    check()
    is_local = master.startswith("local")
    prepare_environment(is_local)
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.master(master).appName(name)
    for key, value in ((SMALL if is_local else {}) | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def connected(master: str, settings: Mapping[str, str]) -> Any:
    """A session of Spark Connect, with a server of its own in this process's JVM.

    As `builder.getOrCreate` does it with spark.api.mode=connect, but for the port: that takes 15002 whatever the settings say, so a
    second one on this machine would fail, or speak to the first.
    """
    from pyspark import SparkContext
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    options: dict[str, Any] = dict(settings) | {"spark.connect.grpc.binding.port": "0"}
    os.environ["SPARK_LOCAL_REMOTE"] = "1"  # so that the end of the session is the end of its server
    ConnectSession._start_connect_server(master, options)  # leaves those options that a session takes
    jvm: Any = SparkContext._jvm
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    builder: Any = ConnectSession.builder
    return builder.config(map=options | {"spark.remote": f"sc://localhost:{service.localPort()}"}).getOrCreate()
