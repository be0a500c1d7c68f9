"""A disk that keeps what was synced and may lose the rest.

Everything written is seen at once by the running node (the page cache). A *kill* of the process loses nothing. A *power cut* goes
back to what was durable and then replays, in order, a drawn number of the later operations: of each file's unsynced appends
and truncations a prefix, the last append possibly torn (cut short, or of the right length but with sectors of zeros), and of the
folder's unsynced creations, renames and removals a prefix, as a journaling file system does. `sync_directory` makes entries
durable; so does syncing a file for everything that was done to names before (an ext4 or xfs journal commits as a whole).

Faults that are injected from outside: `capacity` (a full disk: ENOSPC), `sync_errors` and `read_errors` (EIO), `flip_bit` (what is
stored rots), `read_flips` (what is stored is sound, but a read returns a record with one bit turned over).
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ottla.host.disk import Bytes
from ottla.records.batch import HEADER_SIZE, headers
from tests.simulation.journal import Journal

SECTOR = 512
DEFAULT_CAPACITY = 1 << 40


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@dataclass(slots=True)
class Inode:
    """The content as the node sees it, as it would survive, and the way from the one to the other."""

    number: int
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (position, appended) or (size, None) for a truncation
    modified_ms: int = 0
    rewritten: int = 0  # how often what is durable was changed other than at its end

    def append(self, data: bytes) -> None:
        self.pending.append((len(self.content), data))
        self.content += data

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        if size < len(self.content):
            del self.content[size:]
        else:
            self.content += bytes(size - len(self.content))

    def sync(self) -> None:
        self.rewritten += any(data is None for _, data in self.pending)
        self.durable[:] = self.content
        self.pending.clear()

    def cut_power(self, chance: random.Random) -> str | None:
        """Become what survives. Returns what was lost, for the story."""
        if not self.pending:
            return None
        kept = chance.randrange(len(self.pending) + 1)
        survived = bytearray(self.durable)
        for position, data in self.pending[:kept]:
            _apply(survived, position, data)
        torn = ""
        if kept < len(self.pending) and self.pending[kept][1] is not None and chance.random() < 0.6:
            position, data = self.pending[kept]
            assert data is not None
            _apply(survived, position, _tear(data, position, chance))
            torn = " and tore one"
        self.rewritten += 1
        lost = len(self.pending) - kept
        before = len(self.content)
        self.content[:] = survived
        self.durable[:] = survived
        self.pending.clear()
        return f"lost {lost} operations{torn}, {before} -> {len(survived)} bytes" if lost else None


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
        content += bytes(position - len(content))
    else:
        content += bytes(max(0, position - len(content)))
        content[position : position + len(data)] = data


def _tear(data: bytes, position: int, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return data[: chance.randrange(len(data))] if data else data
    torn = bytearray(data)  # the length was recorded, some of its sectors were not written
    for start in range(-(position % SECTOR), len(data), SECTOR):
        if chance.random() < 0.5:
            low, high = max(0, start), min(len(data), start + SECTOR)
            torn[low:high] = bytes(high - low)
    return bytes(torn)


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path  # as opened; for messages and the digest
        self._era = disk.era

    @property
    def size(self) -> int:
        return len(self._inode.content)

    def append(self, content: Bytes) -> None:
        data = bytes(content)
        if not self._alive():
            return
        self._disk.charge(len(data), self._path)
        self._disk.note("append", self._path, data)
        self._inode.append(data)
        self._inode.modified_ms = self._disk.now_ms()

    def read(self, position: int, size: int) -> bytes:
        if self._disk.read_errors > 0:
            self._disk.read_errors -= 1
            raise _error(errno.EIO, self._path)
        found = self.peek(position, size)
        if self._disk.read_flips > 0 and self._path.endswith(".log") and self._path.startswith(self._disk.flips_in):
            return self._disk.flipped(found, self._path)
        return found

    def peek(self, position: int, size: int) -> bytes:
        """As the simulator reads: without faults."""
        return bytes(memoryview(self._inode.content)[position : position + size])

    def truncate(self, size: int) -> None:
        if self._alive():
            self._disk.note("truncate", self._path, str(size))
            self._inode.truncate(size)
            self._inode.modified_ms = self._disk.now_ms()

    def sync(self) -> None:
        if self._alive():
            self._disk.sync_inode(self._inode, self._path)

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing to give back."""

    def _alive(self) -> bool:
        """Whatever a dead node's leftovers still do, it does not reach the disk."""
        return self._era == self._disk.era


class _SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimulatedDisk:
    """One node's disk. It outlives the node's processes: `end_era` marks the death of one."""

    def __init__(self, name: str, seed: str, journal: Journal, now_ms: Any = lambda: 0) -> None:
        self.name = name
        self.era = 0
        self.capacity = DEFAULT_CAPACITY
        self.sync_errors = 0  # how many of the next syncs fail
        self.read_errors = 0
        self.lost_power = False  # ever
        self.read_flips = 0  # how many of the next reads of records turn a bit over
        self.flips_in = ""  # only of files whose path begins so
        self.locks: set[str] = set()
        self.now_ms = now_ms
        self._journal = journal
        self._random = random.Random(seed)
        self._inodes = 0
        self._names: dict[str, Inode] = {}
        self._directories: set[str] = {"/", "."}
        self._durable_names: dict[str, Inode] = {}
        self._durable_directories: set[str] = {"/", "."}
        self._pending: list[tuple[str, str, Any]] = []  # (folder, operation, arguments), in order
        _DISKS[name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """To a simulated worker process it is passed by name: there is one disk."""
        return _find_disk, (self.name,)

    # -- the door

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        path = _normal(path)
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise _error(errno.ENOENT, path)
            self._need_directory(path)
            self._inodes += 1
            inode = Inode(self._inodes, modified_ms=self.now_ms())
            self._change(posixpath.dirname(path), "link", (path, inode))
        return SimulatedFile(self, inode, path)

    def exists(self, path: str) -> bool:
        path = _normal(path)
        return path in self._names or path in self._directories

    def size(self, path: str) -> int:
        return len(self._inode(path).content)

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def list(self, path: str) -> list[str]:
        path = _normal(path)
        entries = [*self._names, *self._directories]
        return sorted(posixpath.basename(entry) for entry in entries if entry != path and posixpath.dirname(entry) == path)

    def make_directory(self, path: str) -> None:
        path = _normal(path)
        missing = []
        while path not in self._directories:
            if path in self._names:
                raise _error(errno.EEXIST, path)
            missing.append(path)
            path = posixpath.dirname(path) or "."
        for folder in reversed(missing):
            self._change(posixpath.dirname(folder), "mkdir", (folder,))

    def rename(self, old: str, new: str) -> None:
        old, new = _normal(old), _normal(new)
        if not self.exists(old):
            raise _error(errno.ENOENT, old)
        self._need_directory(new)
        if old != new and old in self._directories and new in self._directories and self.list(new):
            raise _error(errno.ENOTEMPTY, new)
        self._change(posixpath.dirname(new), "rename", (old, new))

    def remove(self, path: str) -> None:
        path = _normal(path)
        self._inode(path)
        self._change(posixpath.dirname(path), "unlink", (path,))

    def remove_tree(self, path: str) -> None:
        path = _normal(path)
        if path not in self._directories:
            raise _error(errno.ENOENT, path)
        self._change(posixpath.dirname(path), "rmtree", (path,))

    def sync_directory(self, path: str) -> None:
        path = _normal(path)
        self._fail_sync(path)
        self.note("sync", path, "")
        self._settle(path)

    def read_all(self, path: str) -> bytes:
        return bytes(self._inode(path).content)

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        temporary = self.open(path + ".tmp", create=True)
        temporary.truncate(0)
        temporary.append(content)
        if sync:
            temporary.sync()
        self.rename(path + ".tmp", path)
        if sync:
            self.sync_directory(posixpath.dirname(_normal(path)) or ".")

    def lock(self, path: str) -> _SimulatedLock:
        path = _normal(path)
        self.open(path, create=True)
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.locks.add(path)
        return _SimulatedLock(self, path)

    def usage(self, path: str) -> tuple[int, int]:
        return self.capacity, max(0, self.capacity - self._used())

    # -- what the simulator does to it

    def end_era(self) -> None:
        """The process died: its open files and locks are nobody's."""
        self.era += 1
        self.locks.clear()

    def cut_power(self) -> int:
        """Lose what was not synced. Returns how many files lost something."""
        self.end_era()
        self.lost_power = True
        kept = self._random.randrange(len(self._pending) + 1)
        for _, operation, arguments in self._pending[:kept]:
            _operate(self._durable_names, self._durable_directories, operation, arguments)
        self._pending.clear()
        self._names = dict(self._durable_names)
        self._directories = set(self._durable_directories)
        torn = 0
        for path, inode in sorted(self._names.items()):
            if lost := inode.cut_power(self._random):
                torn += 1
                self._journal.tell("torn writes" if " tore " in lost else "lost writes", f"{self.name}: {path} {lost}")
        return torn

    def flipped(self, content: bytes, path: str) -> bytes:
        """One bit of one record is not what was written. Only what a checksum covers, and only what is not the header: where a
        batch begins and ends is read without looking at the checksum, in Kafka too."""
        batches = [
            (position + HEADER_SIZE, position + header.size) for position, header in headers(content) if header.size > HEADER_SIZE
        ]
        if not batches:
            return content
        self.read_flips -= 1
        low, high = self._random.choice(batches)
        turned = bytearray(content)
        turned[self._random.randrange(low, high)] ^= 1 << self._random.randrange(8)
        self._journal.tell("flipped reads", f"{self.name}: a read of {path} turned a bit over")
        return bytes(turned)

    def durable_files(self, folder: str) -> Iterator[tuple[str, Inode]]:
        """What would be there if the power went now and nothing more survived."""
        return ((path, inode) for path, inode in self._durable_names.items() if path.startswith(folder))

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """The medium rots, in what is durable too."""
        inode = self._inode(path)
        for content in (inode.content, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit
        self._journal.tell("flipped bits", f"{self.name}: {path} bit {bit} of byte {position} flipped")

    def files(self) -> list[str]:
        return sorted(self._names)

    # -- within

    def note(self, operation: str, path: str, data: str | bytes) -> None:
        self._journal.event(self.name, operation, path, data)

    def charge(self, size: int, path: str) -> None:
        if self.capacity < DEFAULT_CAPACITY and self._used() + size > self.capacity:
            self._journal.tell("full disk", f"{self.name}: no space for {size} bytes of {path}")
            raise _error(errno.ENOSPC, path)

    def sync_inode(self, inode: Inode, path: str) -> None:
        self._fail_sync(path)
        self.note("sync", path, str(len(inode.content)))
        inode.sync()
        self._settle(None)

    def _fail_sync(self, path: str) -> None:
        if self.sync_errors > 0:
            self.sync_errors -= 1
            self._journal.tell("failed syncs", f"{self.name}: sync of {path} failed")
            raise _error(errno.EIO, path)

    def _settle(self, folder: str | None) -> None:
        """Make names durable. Of one folder, everything up to its last change: the journal is in order."""
        last = len(self._pending)
        if folder is not None:
            touching = [index for index, (where, _, _) in enumerate(self._pending) if where == folder]
            last = touching[-1] + 1 if touching else 0
        for _, operation, arguments in self._pending[:last]:
            _operate(self._durable_names, self._durable_directories, operation, arguments)
        del self._pending[:last]

    def _change(self, folder: str, operation: str, arguments: tuple[Any, ...]) -> None:
        self.note(operation, " ".join(part for part in arguments if isinstance(part, str)), "")
        self._pending.append((folder, operation, arguments))
        _operate(self._names, self._directories, operation, arguments)

    def _inode(self, path: str) -> Inode:
        path = _normal(path)
        inode = self._names.get(path)
        if inode is None:
            raise _error(errno.EISDIR if path in self._directories else errno.ENOENT, path)
        return inode

    def _need_directory(self, path: str) -> None:
        folder = posixpath.dirname(path) or "."
        if folder not in self._directories:
            raise _error(errno.ENOENT, path)

    def _used(self) -> int:
        return sum(len(inode.content) for inode in self._names.values())


_DISKS: dict[str, SimulatedDisk] = {}


def _find_disk(name: str) -> SimulatedDisk:
    return _DISKS[name]


def _normal(path: str) -> str:
    return posixpath.normpath(path)


def _operate(names: dict[str, Inode], directories: set[str], operation: str, arguments: tuple[Any, ...]) -> None:
    if operation == "link":
        names[arguments[0]] = arguments[1]
    elif operation == "mkdir":
        directories.add(arguments[0])
    elif operation == "unlink":
        names.pop(arguments[0], None)
    elif operation == "rename":
        _rename(names, directories, *arguments)
    else:
        inside = arguments[0] + "/"
        for path in [path for path in names if path.startswith(inside)]:
            del names[path]
        for folder in [folder for folder in directories if folder == arguments[0] or folder.startswith(inside)]:
            directories.discard(folder)


def _rename(names: dict[str, Inode], directories: set[str], old: str, new: str) -> None:
    if old in names:
        names[new] = names.pop(old)
        return
    inside = old + "/"
    for path in [path for path in names if path.startswith(inside)]:
        names[new + path[len(old) :]] = names.pop(path)
    for folder in [folder for folder in directories if folder == old or folder.startswith(inside)]:
        directories.discard(folder)
        directories.add(new + folder[len(old) :])
