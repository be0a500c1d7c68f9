"""A simulated world for the real broker and client: virtual time, a seeded order of events, twins of the doors in `ottla.host`.

| file | what it is |
|---|---|
| `loop.py` | the event loop: virtual time, processes, a seeded order among them |
| `network.py` | connections with delay, cuts, partitions, slow links, backpressure |
| `disk.py` | files that may lose, tear or flip what was not synced, fill up, fail |
| `doors.py` | clock, randomness, workers |
| `node.py` | one machine with its doors: start, kill, power cut, pause, restart |
| `journal.py` | the digest of every event, and the story of a run |
| `simulation.py` | a seed's whole run: nodes, faults, checks |

`python -m tests.simulation SEED` runs one.
"""
