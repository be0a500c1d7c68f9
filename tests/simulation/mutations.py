"""Is the simulator any good? Broken variants of the code (`mutants.py`), each of which it must catch.

    python -m tests.simulation.mutations [NAME …] [--seeds N] [--jobs J]

plays seeds against each variant until one fails, and prints which promise was broken and after how many seeds. A variant that
survives is a hole in the workloads, the faults or the checks.
"""

from __future__ import annotations

import argparse
import os
import sys
from multiprocessing import get_context

from tests.simulation.__main__ import HASH_SEED
from tests.simulation.mutants import BY_NAME, Mutant
from tests.simulation.run import run_seed

FIRST_SEED = 300
DEFAULT_SEEDS = 20
BROKERS = 3
WIDTH = 110  # of the promise and its reason in the table


def hunt(mutant: Mutant, seeds: int, brokers: int = BROKERS) -> tuple[int, str] | None:
    """How many seeds it took, and the promise that was broken; None if it survives."""
    with mutant.applied():
        for tried in range(1, seeds + 1):
            outcome = run_seed(FIRST_SEED + tried, brokers=brokers, focus=mutant.focus)
            if outcome.failure is not None:
                return tried, _first_words(outcome.failure)
    return None


def _first_words(failure: str) -> str:
    """The broken promise; of an exception that ended the run, what it said."""
    lines = failure.splitlines()
    told = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return told[:WIDTH].replace("|", "/")


def _row(task: tuple[str, int]) -> tuple[bool, str]:
    mutant = BY_NAME[task[0]]
    caught = hunt(mutant, task[1])
    after, by = ("—", "survives") if caught is None else (f"{caught[0]} seed{'s' if caught[0] > 1 else ''}", caught[1])
    return caught is None, f"| {mutant.name} | {mutant.what} | {mutant.focus or 'none'} | {after} | {by} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations")
    parser.add_argument("names", nargs="*", metavar="NAME", help="all, if none is named")
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if unknown := set(options.names) - set(BY_NAME):
        parser.error(f"no such variant: {', '.join(sorted(unknown))}")
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-W", "ignore", "-m", "tests.simulation.mutations", *sys.argv[1:]])
    names = options.names or list(BY_NAME)
    print("| variant | what is broken | focus | caught after | by |\n|---|---|---|---|---|")
    survivors = 0
    with get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:  # a fresh process each: variants must not mix
        for survived, row in pool.imap(_row, [(name, options.seeds) for name in names]):
            survivors += survived
            print(row, flush=True)
    print(f"{len(names) - survivors} of {len(names)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
