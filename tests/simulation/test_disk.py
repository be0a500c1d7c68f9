"""The disk's twin: what a power cut may take and what it may not, and that it behaves as the real one otherwise."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.host.disk import Disk, RealDisk
from tests.simulation.disk import SimulatedDisk
from tests.simulation.journal import Journal


def disk_of(seed: int) -> SimulatedDisk:
    disk = SimulatedDisk("n", f"{seed}", Journal())
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


@given(st.integers(0, 10_000))
def test_what_was_synced_survives_and_the_rest_is_a_prefix_or_torn(seed: int) -> None:
    disk = disk_of(seed)
    file = disk.open("/data/log", create=True)
    file.append(b"synced " * 100)
    file.sync()
    pieces = [bytes([65 + index]) * 1000 for index in range(5)]
    for piece in pieces:
        file.append(piece)
    disk.cut_power()
    content = disk.read_all("/data/log")
    assert content.startswith(b"synced " * 100)
    rest = content[700:]
    whole = len(rest) // 1000
    assert rest[: whole * 1000 - 1000] == b"".join(pieces)[: max(0, whole - 1) * 1000]
    assert len(rest) <= 5000


def test_over_many_seeds_all_kinds_of_loss_occur() -> None:
    sizes, zeros, names = set(), False, set()
    for seed in range(200):
        disk = disk_of(seed)
        file = disk.open("/data/log", create=True)
        file.append(b"x" * 2000)
        disk.cut_power()
        names.add(disk.exists("/data/log"))
        if disk.exists("/data/log"):
            content = disk.read_all("/data/log")
            sizes.add(len(content))
            zeros = zeros or b"\x00" in content
    assert names == {True, False}
    assert 0 in sizes
    assert 2000 in sizes
    assert len(sizes) > 10
    assert zeros


@given(st.integers(0, 1000))
def test_replace_leaves_the_old_or_the_new_content(seed: int) -> None:
    disk = disk_of(seed)
    disk.replace("/data/state", b"old")
    disk.replace("/data/state", b"new", sync=True)
    disk.cut_power()
    assert disk.read_all("/data/state") == b"new"


def test_a_kill_loses_nothing_but_a_dead_process_writes_no_more() -> None:
    disk = disk_of(1)
    file = disk.open("/data/log", create=True)
    lock = disk.lock("/data/.lock")
    file.append(b"abc")
    with pytest.raises(BlockingIOError):
        disk.lock("/data/.lock")
    disk.end_era()
    file.append(b"from the grave")
    assert disk.read_all("/data/log") == b"abc"
    disk.lock("/data/.lock")
    lock.release()


def test_faults_raise_what_the_real_disk_would() -> None:
    disk = disk_of(1)
    file = disk.open("/data/log", create=True)
    disk.capacity = 10
    file.append(b"12345")
    with pytest.raises(OSError) as caught:
        file.append(b"678901")
    assert caught.value.errno == errno.ENOSPC
    assert file.size == 5
    disk.sync_errors = 1
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    disk.flip_bit("/data/log", 1, 0)
    assert file.read(0, 10) == b"13345"
    assert pickle.loads(pickle.dumps(disk)) is disk


Step = Callable[[Disk, str], object]
names = st.sampled_from(["a", "b", "sub/a", "sub/deep/c"])
steps: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.builds(
        lambda n, d: (f"append {n}", lambda disk, root: disk.open(f"{root}/{n}", create=True).append(d + b"!")),
        names,
        st.binary(max_size=9),
    ),
    st.builds(lambda n, s: (f"truncate {n}", lambda disk, root: disk.open(f"{root}/{n}").truncate(s)), names, st.integers(0, 12)),
    st.builds(lambda n, p: (f"read {n}", lambda disk, root: disk.open(f"{root}/{n}").read(p, 4)), names, st.integers(0, 12)),
    st.builds(
        lambda n: (f"mkdir {n}", lambda disk, root: disk.make_directory(f"{root}/{n}")),
        st.sampled_from(["sub", "sub/deep", "other"]),
    ),
    st.builds(lambda a, b: (f"rename {a} {b}", lambda disk, root: disk.rename(f"{root}/{a}", f"{root}/{b}")), names, names),
    st.builds(lambda n: (f"remove {n}", lambda disk, root: disk.remove(f"{root}/{n}")), names),
    st.builds(lambda: ("rename sub moved", lambda disk, root: disk.rename(f"{root}/sub", f"{root}/moved"))),
    st.builds(
        lambda n: (f"rmtree {n}", lambda disk, root: disk.remove_tree(f"{root}/{n}")), st.sampled_from(["sub", "other", "moved"])
    ),
    st.builds(lambda n: (f"replace {n}", lambda disk, root: disk.replace(f"{root}/{n}", b"whole")), names),
    st.builds(lambda n: (f"size {n}", lambda disk, root: disk.size(f"{root}/{n}")), names),
)


def outcome(step: Step, disk: Disk, root: str) -> object:
    try:
        return step(disk, root)
    except OSError as error:
        return type(error)


def tree(disk: Disk, path: str) -> object:
    try:
        entries = disk.list(path)
    except OSError:
        return disk.read_all(path)
    if not entries and not isinstance(disk, SimulatedDisk) and Path(path).is_file():
        return disk.read_all(path)
    if not entries and isinstance(disk, SimulatedDisk) and path in disk.files():
        return disk.read_all(path)
    return {name: tree(disk, f"{path}/{name}") for name in entries}


def test_a_folder_that_holds_something_is_not_replaced_by_another(tmp_path: Path) -> None:
    for disk in (RealDisk(), disk_of(1)):
        for name in ("old", "new/inside"):
            disk.make_directory(f"{tmp_path}/{name}")
        with pytest.raises(OSError, match="not empty"):
            disk.rename(f"{tmp_path}/old", f"{tmp_path}/new")


@given(st.lists(steps, max_size=15))
def test_the_twin_does_what_the_real_disk_does(tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[str, Step]]) -> None:
    root = str(tmp_path_factory.mktemp("disk"))
    real, twin = RealDisk(), disk_of(1)
    twin.make_directory(root)
    for _, step in plan:
        assert outcome(step, twin, root) == outcome(step, real, root)
        assert tree(twin, root) == tree(real, root)
