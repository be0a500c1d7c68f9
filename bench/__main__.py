"""`python -m bench`: fetches Apache Kafka 4.3 with Maven, runs it and ottla by turns, prints medians and ratios.

python -m bench                          # everything, three rounds
python -m bench load compaction          # only these
python -m bench clients                  # ottla's Python client beside aiokafka, kafka-python and confluent-kafka
python -m bench --rounds 5 --json FILE   # more rounds; the figures also as JSON
python -m bench --smoke                  # a few seconds of each, to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.compatibility.jars import KAFKA_VERSION, NoKafka, jar_directory

from bench.measures import FIGURES, LIMITS, SMOKE, TURN_NAMES, Sizes, medians, take_turns

TABLE_WIDTH = 118  # also where the output is no terminal


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="ottla beside Apache Kafka, by turns on this machine.")
    parser.add_argument("turns", nargs="*", metavar="TURN", help=f"what to measure: {', '.join(TURN_NAMES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each system has its turn (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures as JSON")
    parser.add_argument("--smoke", action="store_true", help="little of everything, one round")
    parser.add_argument("--data", type=Path, help="a folder for the data of both (default: a temporary one)")
    found = parser.parse_args()
    if unknown := set(found.turns) - set(TURN_NAMES):
        parser.error(f"there is no turn {', '.join(unknown)}; there are {', '.join(TURN_NAMES)}")
    return found


def main() -> int:
    options = arguments()
    console = Console(stderr=True)
    if set(options.turns) != {"clients"}:  # the only turn that needs no Kafka
        try:
            jar_directory()
        except NoKafka as error:
            console.print(f"bench: {error}")
            return 1
    sizes, rounds = (SMOKE, 1) if options.smoke else (Sizes(), options.rounds)
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-", dir=options.data) as folder:
        for turn in options.turns or TURN_NAMES:
            found |= take_turns(turn, rounds, sizes, Path(folder), lambda line: console.print(f"[dim]{line}[/dim]"))
    rows = [row(figure, found[figure]) for figure in FIGURES if figure in found]
    Console(width=max(TABLE_WIDTH, Console().width)).print(table(rows, rounds))
    report = {"machine": machine(), "rounds": rounds, "smoke": options.smoke, "figures": rows}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    else:
        print(json.dumps(report))
    return 0


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(), "kafka": KAFKA_VERSION}


def row(figure: str, values: dict[str, list[float]]) -> dict[str, Any]:
    unit, wanted = FIGURES[figure]
    middle = medians(values)
    [other] = middle.keys() - {"ottla"}
    ratio = middle["ottla"] / middle[other] if middle[other] else float("nan")
    met = None if wanted is None else ratio >= wanted if wanted > 0 else ratio <= -wanted
    if figure in LIMITS:
        wanted, met = -LIMITS[figure], middle["ottla"] <= LIMITS[figure]
    return {
        "figure": figure,
        "unit": unit,
        "beside": other,
        **middle,
        "ratio": ratio,
        "wanted": wanted,
        "met": met,
        "rounds": values,
    }


def table(rows: list[dict[str, Any]], rounds: int) -> Table:
    made = Table(
        title=f"medians of {rounds} round{'s' if rounds > 1 else ''} on {os.cpu_count()} cores, Apache Kafka {KAFKA_VERSION}"
    )
    made.add_column("figure")
    for title in ("Kafka, or who is named", "ottla", "ratio", "wanted"):
        made.add_column(title, justify="right")
    for each in rows:
        wanted = each["wanted"]
        words = "" if wanted is None else f"≥ {wanted:.3g}" if wanted > 0 else f"≤ {-wanted:g}"
        colour = {True: "green", False: "red", None: "default"}[each["met"]]
        figures = (number(each[each["beside"]], each["unit"]), number(each["ottla"], each["unit"]))
        made.add_row(each["figure"], *figures, f"[{colour}]{each['ratio']:.2f}[/{colour}]", words)
    return made


def number(value: float, unit: str) -> str:
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return f"{shown} {unit}"


if __name__ == "__main__":
    sys.exit(main())
