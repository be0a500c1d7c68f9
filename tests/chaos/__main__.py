"""`python -m tests.chaos [--seconds 600] [--seed N] [--keep DIR]`: exit 0 when nothing was lost.

Three nodes as processes, killed -9, paused and cut off from each other (where the machine allows network namespaces) in an order
that the seed decides, while two librdkafka producers, one of ottla's own, and two consumers work. The moments are the machine's:
a seed repeats the faults, not the run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.network import enter
from tests.chaos.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default 600)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="which faults (default: others each time)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="an empty folder to keep data and logs in")
    options = parser.parse_args()
    cuttable = enter("tests.chaos")
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {line}", flush=True)

    say(f"seed {options.seed}" + ("" if cuttable else "; this machine allows no network namespaces, so nothing is cut"))
    with tempfile.TemporaryDirectory(prefix="ottla-chaos-") as temporary:
        outcome = Run(options.keep or Path(temporary), options.seed, cuttable, say).run(options.seconds)
    print(outcome)
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
