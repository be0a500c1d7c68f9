"""What all tests share: no deadline on single Hypothesis examples, because the machine may be busy with something else."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ottla", deadline=None)
settings.load_profile("ottla")
