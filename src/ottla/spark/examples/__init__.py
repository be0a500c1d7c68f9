"""The examples of `ottla pipeline init`: each folder here is a project, written out without its `__init__.py` files."""

from __future__ import annotations

from pathlib import Path

from ottla.model.errors import OttlaError

EXAMPLES = {
    "orders": "raw orders → a clean table and a quarantine → revenue per minute in a topic, exactly once → a view",
    "cdc": "change events → their history, and the table of the latest value of each key; a tombstone deletes",
    "route": "one topic of messages → topics by what they say and how urgent they are; what cannot be read has a topic, too",
    "archive": "a topic → Parquet by day, with a backfill from files, and a second pipeline that replays it to a topic, once",
}
_HERE = Path(__file__).parent
_LEFT_OUT = ("__init__.py", "__pycache__")


class ExampleExists(OttlaError):
    """There is something where an example was to be written."""


def write_out(example: str, folder: Path) -> list[Path]:
    """The files of an example, in a folder that is new or empty. Raises ExampleExists."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExampleExists(f"{folder} is there already, and not empty; name another folder")
    source = _HERE / example
    written = []
    for path in sorted(source.rglob("*")):
        if path.is_dir() or any(part in _LEFT_OUT for part in path.relative_to(source).parts):
            continue
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        written.append(target)
    return written
