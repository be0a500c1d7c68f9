"""Spark Declarative Pipelines over topics: a project is a folder with a `spark-pipeline.yml`, and this runs it as `spark-pipelines` does.

What is prepared beside that: Java and PySpark are looked for, the workers get this interpreter, what the JVM says goes to a file, and
there is a catalog on disk (`state/metastore`), without which a second run would not know the tables of the first and fail at their
files. In the project: `state/` has checkpoints, catalog and log, `tables/` the tables. One run at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.model.errors import OttlaError
from ottla.spark.session import SMALL, check, connected, prepare_environment, said_to, ship

SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
BOOTSTRAP = "spark.ottla.bootstrap"  # how a pipeline's definitions learn where the cluster is
STATE, TABLES, LOG = "state", "tables", "spark.log"
_FLOW = re.compile(r"Flow '?(?P<name>[^\s']+)'? (?:is|has) (?P<state>[A-Z]+)")
_FAILED = ("FAILED", "SKIPPED")  # EXCLUDED are those that --refresh and --full-refresh do not name


class PipelineError(OttlaError):
    """A project that cannot be run, or a run that failed: one sentence."""


@dataclass
class Flow:
    """How far a flow has come. A flow that is a stream tells its rows; one that is a batch does not."""

    name: str
    state: str = "QUEUED"
    rows: int | None = None
    started_s: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Project:
    folder: Path
    spec: Path
    name: str
    storage: str
    configuration: Mapping[str, str]
    catalog: str | None
    database: str | None

    @property
    def state(self) -> Path:
        return self.folder / STATE


@dataclass
class Outcome:
    flows: list[Flow]
    tables: dict[str, int] = field(default_factory=dict)  # rows


def open_project(path: Path) -> Project:
    """`path` is a folder or a spec in it. Raises PipelineError."""
    spec = next((path / name for name in SPECS if (path / name).is_file()), None) if path.is_dir() else path
    if spec is None or not spec.is_file():
        raise PipelineError(f"there is no {SPECS[0]} in {path}" if path.is_dir() else f"there is no {path}")
    loaded = _loaded(spec)
    folder = spec.parent.resolve()
    storage = loaded.storage
    if "://" not in storage and not storage.startswith("file:"):  # Spark wants an absolute address; a project can be moved
        storage = (folder / storage).as_uri()
    return Project(folder, spec.resolve(), loaded.name, storage, loaded.configuration, loaded.catalog, loaded.database)


def _loaded(spec: Path) -> Any:
    try:
        from pyspark.pipelines.cli import load_pipeline_spec
    except ImportError as error:
        raise PipelineError(f"Spark's pipelines need more than is installed ({error.name}): pip install 'ottla[spark]'") from None
    from pyspark.errors import PySparkException

    try:
        return load_pipeline_spec(spec)
    except PySparkException as error:
        raise PipelineError(f"{spec}: {_first_line(error)}") from None
    except Exception as error:  # PyYAML's errors, and what a file that is no mapping leads to
        raise PipelineError(f"{spec} is not a specification of a pipeline: {_first_line(error)}") from None


@contextlib.contextmanager
def opened(project: Project, bootstrap: str, master: str, settings: Mapping[str, str]) -> Iterator[Any]:
    """A session for runs of the project, with nobody else's run under way. Raises PipelineError."""
    check()
    _loaded(project.spec)
    project.state.mkdir(exist_ok=True)
    with _alone(project.state / "lock"):
        with said_to(project.state / LOG):
            spark = _session(project, bootstrap, master, settings)
        try:
            yield spark
        finally:
            with contextlib.suppress(Exception):
                spark.stop()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as door:
        try:
            fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"another run of the pipeline in {path.parent.parent} is under way") from None
        yield


def _session(project: Project, bootstrap: str, master: str, settings: Mapping[str, str]) -> Any:
    is_local = master.startswith("local")
    prepare_environment(is_local)
    metastore = project.state / "metastore"
    defaults = (SMALL if is_local else {}) | {
        "spark.app.name": project.name,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (project.folder / TABLES).as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={metastore};create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={project.state / 'derby.log'}",
        "spark.sql.session.timeZone": "UTC",
    }
    fixed = {"spark.sql.connect.serverStacktrace.enabled": "false", BOOTSTRAP: bootstrap}
    asked = defaults | dict(project.configuration) | dict(settings) | fixed
    with warnings.catch_warnings():  # Spark tells of each setting that it took at the start and cannot change now
        warnings.simplefilter("ignore")
        spark = connected(master, asked)
    if not is_local:
        ship(spark)
    return spark


def execute(
    spark: Any,
    project: Project,
    tell: Callable[[Flow], None],
    *,
    dry: bool = False,
    refresh: Sequence[str] = (),
    full_refresh: Sequence[str] = (),
    full_refresh_all: bool = False,
) -> Outcome:
    """One run: every flow takes what is there now. `tell` hears of each change of a flow. Raises PipelineError."""
    from pyspark.pipelines.cli import register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    watched = _Watched(tell)
    try:
        graph = create_dataflow_graph(
            spark, default_catalog=project.catalog, default_database=project.database, sql_conf=dict(project.configuration)
        )
        with contextlib.redirect_stdout(None):  # it tells of each file that it loads
            register_definitions(
                project.spec, SparkConnectGraphElementRegistry(spark, graph), _loaded(project.spec), spark, graph
            )
        with _listening(spark, watched):
            for result in start_run(
                spark,
                graph,
                full_refresh=list(full_refresh),
                full_refresh_all=full_refresh_all,
                refresh=list(refresh),
                dry=dry,
                storage=project.storage,
            ):
                if "pipeline_event_result" in result:
                    watched.hear(result["pipeline_event_result"].event.message)
    except Exception as error:
        raise PipelineError(watched.sentence(error)) from None
    failed = [flow.name for flow in watched.flows.values() if flow.state in _FAILED]
    if failed:
        raise PipelineError(f"the flow {failed[0]} failed; details are in {project.state / LOG}")
    named = [*refresh, *full_refresh]
    if named and all(flow.state == "EXCLUDED" for flow in watched.flows.values()):
        raise PipelineError(
            f"nothing was run: there is no {' and no '.join(named)}; there are {', '.join(sorted(watched.flows))}"
        )
    return Outcome(list(watched.flows.values()), {} if dry else _rows_of(spark, project))


def _rows_of(spark: Any, project: Project) -> dict[str, int]:
    """The tables of a catalog of our own, with their rows; one that others share may have any number of tables."""
    if "spark.sql.catalogImplementation" in project.configuration or project.catalog is not None:
        return {}
    names = sorted(table.name for table in spark.catalog.listTables(project.database) if not table.isTemporary)
    return {name: spark.table(f"`{project.database or 'default'}`.`{name}`").count() for name in names}


class _Watched:
    def __init__(self, tell: Callable[[Flow], None]) -> None:
        self.flows: dict[str, Flow] = {}
        self._tell = tell
        self._told: list[str] = []

    def _flow(self, name: str) -> Flow:
        short = name.replace("`", "").rsplit(".", 1)[-1]
        return self.flows.setdefault(short, Flow(short))

    def hear(self, message: str) -> None:
        self._told.append(message)
        found = _FLOW.match(message)
        if found is None:
            return
        flow, now = self._flow(found["name"]), time.monotonic()
        flow.state = found["state"]
        if flow.state == "STARTING":
            flow.started_s = now
        if flow.state in ("COMPLETED", *_FAILED):
            flow.seconds = now - (flow.started_s or now)
        self._tell(flow)

    def progressed(self, name: str | None, rows: int) -> None:
        if name and rows:
            flow = self._flow(name)
            flow.rows = (flow.rows or 0) + rows
            self._tell(flow)

    def sentence(self, error: Exception) -> str:
        """Ours if it is one of ours, wherever it was told; otherwise what Spark says of the flow that failed."""
        from ottla.spark.sql import OURS, sentence_of

        for text in (str(error), *reversed(self._told)):
            if OURS.search(text):
                return sentence_of(Exception(text))
        return sentence_of(error)


@contextlib.contextmanager
def _listening(spark: Any, watched: _Watched) -> Iterator[None]:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listening(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            watched.progressed(event.progress.name, event.progress.numInputRows)

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    made = Listening()
    spark.streams.addListener(made)
    try:
        yield
    finally:
        spark.streams.removeListener(made)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
