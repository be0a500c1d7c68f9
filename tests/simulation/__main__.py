"""Run seeds: `python -m tests.simulation [SEED] [--seeds N] [--hours H] [--jobs J] [--brokers B]
[--controllers C] [--focus F] [--broken VARIANT]`.

With a SEED alone, that one is played and its story told. Otherwise seeds are played one after the other (from SEED or 1) until there
are N of them or H hours of virtual time, with a progress line; the first failure prints its seed, the broken promise and the
story, and the same seed plays it again. At the end stands what happened in all of them, and a run of many seeds in which one of
the things that matter never happened has failed, too: it has shown nothing. `SEED --broken VARIANT` plays one with a variant of the
code that is broken on purpose (`mutants.py`), to see what it does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from multiprocessing import get_context
from multiprocessing.pool import Pool
from time import monotonic

from tests.simulation.mutants import BY_NAME
from tests.simulation.plan import FOCUSES
from tests.simulation.run import MIN_FAULTS, Outcome, play, run_seed

STORY_TAIL = 80
HASH_SEED = "0"  # the order of sets of strings depends on it, and with it the digest
MIN_ACKNOWLEDGED = 2_000
MATTERS = ("elections", "truncations", "in-sync changes", "rebalances", "aborts", "restarts", "torn writes")
MANY = 100  # with so many seeds each of them must have happened


def main() -> int:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-W", "ignore", "-m", "tests.simulation", *sys.argv[1:]])
    if options.seeds is None and options.hours is None:
        with BY_NAME[options.broken].applied() if options.broken else nullcontext():
            outcome = run_seed(options.seed or 1, brokers=options.brokers, controllers=options.controllers, focus=options.focus)
        print("\n".join(outcome.story))
        _tell(outcome)
        return 1 if outcome.failure else 0
    return _many(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", type=int, help="how many seeds")
    parser.add_argument("--hours", type=float, help="how many hours of virtual time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--controllers", type=int, default=0, help="nodes of their own that vote, instead of the brokers")
    parser.add_argument("--keep-going", action="store_true", help="play all seeds and tell of the first failure at the end")
    parser.add_argument("--focus", choices=tuple(FOCUSES), default="", help="what is shaken above all")
    parser.add_argument("--broken", choices=tuple(BY_NAME), default="", help="one seed with a broken variant of the code")
    options = parser.parse_args()
    if options.broken and (options.seeds is not None or options.hours is not None):
        parser.error("--broken plays one seed; many are played by python -m tests.simulation.mutations")
    return options


def _outcomes(pool: Pool | None, tasks: Iterator[tuple[int, int, int, str]]) -> Iterator[Outcome]:
    return map(play, tasks) if pool is None else pool.imap(play, tasks)


def _many(options: argparse.Namespace) -> int:
    first = options.seed or 1
    seeds = count(first) if options.seeds is None else iter(range(first, first + options.seeds))
    began = monotonic()
    totals: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failed: Outcome | None = None
    pool = get_context("spawn").Pool(options.jobs, maxtasksperchild=50) if options.jobs > 1 else None
    try:
        tasks = ((seed, options.brokers, options.controllers, options.focus) for seed in seeds)
        for outcome in _outcomes(pool, tasks):
            _add(totals, kinds, outcome)
            _progress(totals)
            if outcome.failure is None and (outcome.acknowledged < MIN_ACKNOWLEDGED or outcome.faults < MIN_FAULTS):
                outcome.failure = f"too little happened: {outcome.acknowledged} acknowledged, {outcome.faults} faults"
            if outcome.failure is not None:
                print(f"\nseed {outcome.seed} fails: {outcome.failure.splitlines()[0]}", flush=True)
                failed = failed or outcome
                if not options.keep_going:
                    break
            if options.hours is not None and totals["milliseconds"] >= options.hours * 3_600_000:
                break
    finally:
        if pool is not None:
            pool.terminate()
    print(f"  in {(monotonic() - began) / 60:.1f} minutes")
    return _summary(totals, kinds, failed)


def _add(totals: Counter[str], kinds: Counter[str], outcome: Outcome) -> None:
    totals.update(seeds=1, events=outcome.events, acknowledged=outcome.acknowledged, faults=outcome.faults)
    totals["milliseconds"] += int(outcome.virtual_seconds * 1000)
    kinds.update(outcome.counts)
    kinds.update(f"runs with {name}" for name in outcome.plan.workloads)


def _progress(totals: Counter[str]) -> None:
    hours = totals["milliseconds"] / 3_600_000
    line = f"seeds {totals['seeds']}  virtual hours {hours:.2f}  events {totals['events']:,}  faults {totals['faults']:,}"
    print(f"\r{line}  acknowledged {totals['acknowledged']:,}", end="", flush=True)


def _summary(totals: Counter[str], kinds: Counter[str], failed: Outcome | None) -> int:
    print("  ".join(f"{kind}: {kinds[kind]:,}" for kind in MATTERS))
    print("also: " + "  ".join(f"{kind}: {number:,}" for kind, number in sorted(kinds.items()) if kind not in MATTERS))
    if failed is not None:
        print("\n".join(failed.story[-STORY_TAIL:]))
        _tell(failed)
        return 1
    missing = [kind for kind in MATTERS if not kinds[kind]]
    if missing and totals["seeds"] >= MANY:
        print(f"FAILED: never happened: {', '.join(missing)}")
        return 1
    return 0


def _tell(outcome: Outcome) -> None:
    print(
        f"seed {outcome.seed}  digest {outcome.digest}  events {outcome.events:,}  virtual seconds {outcome.virtual_seconds:.1f}"
        f"  faults {outcome.faults}  acknowledged {outcome.acknowledged}"
    )
    print("  ".join(f"{kind}: {number}" for kind, number in sorted(outcome.counts.items())))
    if outcome.failure is not None:
        print(f"FAILED: {outcome.failure}")


if __name__ == "__main__":
    sys.exit(main())
