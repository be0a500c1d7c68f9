"""The real disk's promises."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
from pathlib import Path

import pytest

from ottla.host.disk import FileRange, RealDisk, RealFile

DISK = RealDisk()


def test_an_append_ends_where_the_next_begins(tmp_path: Path) -> None:
    file = DISK.open(f"{tmp_path}/log", create=True)
    parts: list[bytes | bytearray | memoryview] = [b"12" * 10_000, b"", bytearray(b"x"), memoryview(b"yz")]
    for part in parts:
        file.append(part)
    content = b"".join(parts)
    assert file.size == len(content)
    assert file.read(0, 1 << 20) == content
    assert file.read(len(content) - 2, 100) == b"yz"
    assert DISK.open(f"{tmp_path}/log").size == len(content)
    file.truncate(3)
    file.append(b"end")
    assert DISK.read_all(f"{tmp_path}/log") == content[:3] + b"end"


def test_a_file_range_outlives_the_file_s_name(tmp_path: Path) -> None:
    path = f"{tmp_path}/log"
    file = DISK.open(path, create=True)
    file.append(b"0123456789")
    part = FileRange(file, 2, 5)
    DISK.remove(path)
    del file
    assert len(part) == 5
    assert part.read() == b"23456"
    with pytest.raises(FileNotFoundError):
        DISK.open(path)


def _fill(limit: int, path: str, found: multiprocessing.Queue[tuple[int, int, int]]) -> None:
    """In a process of its own, because a limit on file sizes holds for the whole process."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    file = RealFile(os.open(path, os.O_RDWR | os.O_CREAT))
    file.append(b"a" * (limit - 10))
    try:
        file.append(b"b" * 12)
    except OSError as error:
        found.put((error.errno or 0, file.size, os.stat(path).st_size))


def test_an_append_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=_fill, args=(4096, f"{tmp_path}/log", found))
    process.start()
    assert found.get(timeout=30) == (errno.EFBIG, 4086, 4086)
    process.join(30)


def test_a_lock_is_one_holder_s(tmp_path: Path) -> None:
    path = f"{tmp_path}/.lock"
    held = DISK.lock(path)
    with pytest.raises(BlockingIOError):
        DISK.lock(path)
    held.release()
    DISK.lock(path).release()


def test_folders_names_and_small_files(tmp_path: Path) -> None:
    root = f"{tmp_path}/a/b"
    assert DISK.list(root) == []
    DISK.make_directory(root)
    DISK.make_directory(root)
    DISK.replace(f"{root}/state", b"one")
    DISK.replace(f"{root}/state", b"two", sync=False)
    assert DISK.list(root) == ["state"]
    DISK.rename(f"{root}/state", f"{root}/other")
    assert DISK.read_all(f"{root}/other") == b"two"
    assert DISK.size(f"{root}/other") == 3
    assert DISK.modified_ms(f"{root}/other") > 1_600_000_000_000
    DISK.sync_directory(root)
    DISK.remove_tree(f"{tmp_path}/a")
    assert not DISK.exists(root)
    total, free = DISK.usage(str(tmp_path))
    assert 0 < free <= total
    assert isinstance(pickle.loads(pickle.dumps(DISK)), RealDisk)
