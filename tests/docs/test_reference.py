"""docs/API.md speaks of nothing that is not there."""

from __future__ import annotations

import re

from tests.docs import reference


def test_what_the_reference_names_exists() -> None:
    classes = {each.__name__: each for each in [*reference.CLASSES, *reference.EMBEDDED]}
    named = re.findall(r"^### (\w+)\.(\w+)$", reference.PAGE.read_text(), re.MULTILINE)
    assert len(named) > 100
    gone = [f"{owner}.{name}" for owner, name in named if not hasattr(classes[owner], name)]
    assert not gone, f"run `python -m tests.docs.reference`: {', '.join(gone)} are no more"


def test_every_class_and_setting_of_today_can_be_described() -> None:
    text = reference.reference()
    for each in [*reference.CLASSES, *reference.EMBEDDED]:
        assert f"## {each.__name__}\n" in text
    for name in ("linger_ms", "bootstrap_servers", "auto_offset_reset"):
        assert text.count(f"| `{name}` |") == 1
