"""`ottla sql`: what it prints of a statement, of a stream, and of a mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster
from ottla.spark.sql import sentence_of, statements, topics_in
from tests.cli.processes import environment


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
