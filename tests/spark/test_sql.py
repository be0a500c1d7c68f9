"""`ottla sql`: what it prints of a statement, of a stream, and of a mistake."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster
from ottla.spark.sql import sentence_of, statements, topics_in
from tests.cli.processes import environment
from tests.cli.test_terminal import on_a_terminal, read
from tests.compatibility.wire import wait_until


def test_topics_are_found_in_a_statement_by_name() -> None:
    topics = ["orders", "orders-priced", "a.b", "other", "Names"]
    assert topics_in("select * from orders join names", topics) == ["orders", "Names"]
    assert topics_in("select * from `orders-priced`, `a.b`", topics) == ["orders-priced", "a.b"]
    assert topics_in("select 1", topics) == []


def test_an_error_of_ours_is_told_in_our_words_and_one_of_sparks_in_its_first_line() -> None:
    ours = "[PYTHON_EXCEPTION] An exception…\nottla.spark.options.OptionError: there is no topic a at b:1\n SQLSTATE: 38000"
    assert sentence_of(Exception(ours)) == "there is no topic a at b:1"
    raised = (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\nTraceback (most recent call last):\n"
        '  File "/spark/worker.py", line 1, in main\n    process()\n    ^^^^^^^^^\n'
        '  File "/p/places.py", line 11, in where\n    import nothing\nModuleNotFoundError: No module named nothing\n SQLSTATE: 38000\n'
    )
    assert sentence_of(Exception(raised)) == "ModuleNotFoundError: No module named nothing (/p/places.py, line 11, in where)"
    assert sentence_of(Exception("\n[PARSE] near 'selec'\n== SQL ==\nselec")) == "[PARSE] near 'selec'"


def test_statements_are_parted_at_semicolons_that_are_not_quoted() -> None:
    text = "CREATE VIEW `a;b` AS SELECT ';', \"x;\" -- no; end\n; SELECT 1 /* ; */ ;; "
    assert statements(text) == ["CREATE VIEW `a;b` AS SELECT ';', \"x;\" -- no; end", "SELECT 1 /* ; */"]
    assert statements(" ; ") == []


LIMIT_S = 180.0  # Spark's start alone takes its time on a busy machine


def ottla(*arguments: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ottla", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(bootstrap))


@pytest.mark.spark
def test_a_statement_is_answered_with_a_table_a_stream_with_lines_and_a_mistake_with_a_sentence(cluster: EmbeddedCluster) -> None:
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("sold-today", 2, 1)
    with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(30):
            producer.send("sold-today", json.dumps({"price": number}).encode(), key=b"p%d" % (number % 3))
        producer.flush()
    price = "cast(get_json_object(value, '$.price') AS int)"
    statement = f"SELECT key, count(*) AS n, sum({price}) AS money FROM `sold-today` GROUP BY key ORDER BY key"
    done = ottla("sql", statement, bootstrap=cluster.bootstrap)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["KEY", "N", "MONEY"], ["p0", "10", "135"], ["p1", "10", "145"], ["p2", "10", "155"],
    ]  # fmt: skip
    typed = "CREATE TEMPORARY VIEW dear AS SELECT * FROM `sold-today` WHERE price >= 20; SELECT _key, sum(price) AS m FROM dear GROUP BY _key"
    done = ottla("sql", typed, "--columns", "sold-today=price int", "--json", bootstrap=cluster.bootstrap)
    assert done.returncode == 0, done.stderr
    assert {row["_key"]: row["m"] for row in json.loads(done.stdout)} == {"p0": 72, "p1": 75, "p2": 98}
    stream = ottla("sql", "--follow", "--until-now", "--json", "SELECT offset FROM `sold-today`", bootstrap=cluster.bootstrap)
    assert stream.returncode == 0, stream.stderr
    assert len([json.loads(line) for line in stream.stdout.splitlines()]) == 30
    wrong = ottla("sql", "SELECT nothing FROM `sold-today`", bootstrap=cluster.bootstrap)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("ottla: ")
    assert "nothing" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def fill(bootstrap: str, topic: str, *records: tuple[str, str | None]) -> None:
    with sync.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic, 2, 1)
    with sync.Producer(bootstrap_servers=bootstrap) as producer:
        for key, value in records:
            producer.send(topic, None if value is None else value.encode(), key=key.encode())
        producer.flush()


@pytest.mark.spark
def test_a_topic_seen_as_a_table_is_joined_with_a_file_and_printed_as_far_as_is_wanted(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    moves = [("a", "Ulm"), ("b", "Rom"), ("c", "Linz"), ("a", "Bonn"), ("b", None), ("d", "Genf"), ("x", "Oslo")]
    fill(cluster.bootstrap, "moves", *moves)
    people = tmp_path / "people.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "name": ["Anna", "Bert", "Carl", "Dora"]}), people)
    statement = f"SELECT name, value AS city FROM moves JOIN parquet.`{people}` ON key = id ORDER BY name"
    done = ottla("sql", "--latest-per-key", "moves", "--rows", "2", statement, bootstrap=cluster.bootstrap)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [["NAME", "CITY"], ["Anna", "Bonn"], ["Carl", "Linz"]]
    assert done.stderr == "the first 2 rows; --rows prints more\n"


@pytest.mark.spark
def test_what_is_not_committed_is_left_out_if_so_wanted(cluster: EmbeddedCluster) -> None:
    fill(cluster.bootstrap, "paid", ("a", "before"))
    with sync.Producer(bootstrap_servers=cluster.bootstrap, transactional_id="paying") as producer:
        producer.init_transactions()
        for is_kept in (True, False):
            producer.begin_transaction()
            producer.send("paid", b"kept" if is_kept else b"aborted", key=b"b")
            producer.flush()
            (producer.commit_transaction if is_kept else producer.abort_transaction)()
    for options, expected in (([], {"before", "kept", "aborted"}), (["--committed"], {"before", "kept"})):
        done = ottla("sql", *options, "--json", "SELECT value FROM paid", bootstrap=cluster.bootstrap)
        assert done.returncode == 0, done.stderr
        assert {row["value"] for row in json.loads(done.stdout)} == expected


@contextmanager
def following(folder: Path, *arguments: str, bootstrap: str) -> Iterator[Callable[[str, Callable[[list[str]], Any]], Any]]:
    """An endless statement, and a way to wait for something in the lines that it has printed. Then Ctrl-C, and it must end cleanly."""
    said, complaints = folder / "said", folder / "complaints"
    with said.open("w") as output, complaints.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "sql", "--follow", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment(bootstrap),
            start_new_session=True,
            # A shell that puts this suite into the background makes its children deaf to Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def until(what: str, is_so: Callable[[list[str]], Any]) -> Any:
        return wait_until(
            what, lambda: is_so(said.read_text().splitlines()), limit_s=LIMIT_S, alive=lambda: process.poll() is None
        )

    try:
        yield until
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: whoever is in the foreground hears it, the JVM too
        assert process.wait(LIMIT_S) == 130
        assert complaints.read_text().strip() == ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.spark
def test_a_statement_that_follows_prints_what_arrives_later_until_ctrl_c(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    fill(cluster.bootstrap, "arriving", ("a", "old"))
    statement = ["--from", "latest", "--json", "SELECT value FROM arriving"]
    with (
        sync.Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer,
        following(tmp_path, *statement, bootstrap=cluster.bootstrap) as until,
    ):
        numbers = itertools.count()

        def first_answer(lines: list[str]) -> bool:
            """It has begun when something that was sent is printed."""
            if not lines:
                producer.send("arriving", b"%d" % next(numbers), partition=0)
                producer.flush()
            return bool(lines)

        until("the first line", first_answer)
        producer.send("arriving", b"last", partition=0)
        producer.flush()
        lines = until("the last line", lambda lines: lines if '{"value": "last"}' in lines else None)
    values = [json.loads(line)["value"] for line in lines]
    assert values[-1] == "last"
    seen = [int(value) for value in values[:-1]]  # nothing old, and from where it began everything
    assert seen == list(range(seen[0], next(numbers)))


@pytest.mark.spark
def test_an_aggregate_that_follows_is_printed_whole_whenever_it_changes(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    fill(cluster.bootstrap, "counted", ("a", "1"), ("b", "1"), ("a", "1"))
    statement = "SELECT key, count(*) AS n FROM counted GROUP BY key"

    def ends_with(*rows: str) -> Callable[[list[str]], bool]:
        def is_so(lines: list[str]) -> bool:
            words = [" ".join(line.split()) for line in lines]
            return "KEY N" in words and set(words[len(words) - words[::-1].index("KEY N") :]) - {""} == set(rows)

        return is_so

    with following(tmp_path, statement, bootstrap=cluster.bootstrap) as until:
        until("the first counts", ends_with("a 2", "b 1"))
        with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("counted", b"1", key=b"b")
            producer.flush()
        until("the new counts", ends_with("a 2", "b 2"))


@pytest.mark.spark
def test_a_long_statement_has_a_bar_for_each_stage_on_a_terminal(cluster: EmbeddedCluster) -> None:
    statement = "SELECT max(sha2(cast(id AS string), 256)) AS most FROM range(0, 4000000, 1, 8)"
    code, shown = on_a_terminal("sql", statement, bootstrap=cluster.bootstrap)
    assert code == 0, shown
    assert b"stage 0" in shown
    assert b"MOST" in shown.upper()


@pytest.mark.spark
def test_ctrl_c_ends_a_statement_that_would_take_for_ever_without_a_word_of_complaint(cluster: EmbeddedCluster) -> None:
    """Typed on a terminal, whose bar tells that it has begun."""
    statement = "SELECT max(sha2(cast(id AS string), 256)) FROM range(0, 1000000000000, 1, 8)"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "sql", statement],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(cluster.bootstrap) | {"TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=_on_this_terminal,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := read(ours):
            if b"stage 0" not in shown and b"stage 0" in shown + chunk:
                os.write(ours, b"\x03")
            shown += chunk
        assert process.wait(LIMIT_S) == 130
        assert b"stage 0" in shown
        assert b"Traceback" not in shown, shown[-3000:]
    finally:
        os.close(ours)
        process.kill()


def _on_this_terminal() -> None:
    """Standard input becomes the terminal from which the session is controlled."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
