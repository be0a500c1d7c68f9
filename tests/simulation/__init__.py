"""A simulated world for the real broker and client: virtual time, a seeded order of events, twins of the doors in `ottla.host`.

| file | what it is |
|---|---|
| `loop.py` | the event loop: virtual time, processes, a seeded order among them |
| `network.py` | connections with delay, cuts, partitions, slow links, backpressure |
| `disk.py` | files that may lose, tear or flip what was not synced, fill up, fail |
| `doors.py` | clock, randomness, workers |
| `node.py` | one machine with its doors: start, kill, power cut, pause, restart |
| `journal.py` | the digest of every event, and the story of a run |
| `simulation.py` | a loop, an internet and machines by name, all from one seed |
| `cluster.py` | real brokers on such machines |
| `plan.py`, `run.py` | what a seed makes of the world, and its run from the first event to the verdict |
| `workloads/` | what clients do |
| `faults.py` | what goes wrong, and what may not |
| `invariants.py`, `quorum.py`, `coordinators.py`, `files.py` | what must hold after every event, or on a disk |
| `checks.py`, `history.py` | what must hold of the whole history |
| `mutants.py`, `mutations.py` | broken variants of the code, and whether they are caught |

`python -m tests.simulation SEED` runs one.
"""
