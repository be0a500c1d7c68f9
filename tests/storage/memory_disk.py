"""A disk in memory for storage tests: Disk's contract, a capacity that can run out, and a crash that copies what is there."""

from __future__ import annotations

import errno
from collections.abc import Callable

from ottla.host.disk import Bytes, File


class Inode:
    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = b""
        self.modified_ms = 0


class MemoryFile:
    def __init__(self, disk: MemoryDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    @property
    def size(self) -> int:
        return len(self._inode.content)

    def append(self, content: Bytes) -> None:
        self._disk.spend(len(content))
        self._inode.content += content

    def read(self, position: int, size: int) -> bytes:
        found = bytes(self._inode.content[position : position + size])
        self._disk.bytes_read += len(found)
        return found

    def truncate(self, size: int) -> None:
        del self._inode.content[size:]
        self._inode.content.extend(bytes(size - len(self._inode.content)))

    def sync(self) -> None:
        self._disk.syncs += 1
        self._inode.synced = bytes(self._inode.content)

    def fileno(self) -> int | None:
        return None

    def close(self) -> None: ...


class _Lock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = set()
        self.locks: set[str] = set()
        self.budget: int | None = None  # bytes that may still be written; None: without limit
        self.fuse: int | None = None  # changes (writes, renames, removals) until the power goes; None: never
        self.syncs = 0
        self.bytes_read = 0
        self.durable: dict[str, Inode] = {}  # names as of the last sync of their folder

    def spend(self, size: int) -> None:
        self._burn()
        if self.budget is not None:
            if size > self.budget:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.budget -= size

    def _burn(self) -> None:
        if self.fuse is not None:
            if self.fuse == 0:
                raise PowerCut
            self.fuse -= 1

    def copy(self) -> MemoryDisk:
        """What another process would find after this one died."""
        other = MemoryDisk()
        other.directories = set(self.directories)
        for path, inode in self.files.items():
            other.files[path] = Inode()
            other.files[path].content = bytearray(inode.content)
        return other

    def after_power_cut(self, keep: Callable[[int], int]) -> MemoryDisk:
        """What is left when the power goes: synced names only, and of unsynced bytes as many as `keep` says of how many."""
        other = MemoryDisk()
        other.directories = set(self.directories)
        for path, inode in self.durable.items():
            survivor = other.files[path] = Inode()
            common = bytes(inode.content).startswith(inode.synced)
            extra = inode.content[len(inode.synced) :] if common else b""
            survivor.content = bytearray(inode.synced + extra[: keep(len(extra))])
            survivor.synced = bytes(survivor.content)
            other.durable[path] = survivor
        return other

    def open(self, path: str, *, create: bool = False) -> File:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self.spend(0)
            self.files[path] = Inode()
        return MemoryFile(self, self.files[path])

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def size(self, path: str) -> int:
        return len(self._inode(path).content)

    def _inode(self, path: str) -> Inode:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.files[path]

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def list(self, path: str) -> list[str]:
        below = {name[len(path) + 1 :].split("/")[0] for name in (*self.files, *self.directories) if name.startswith(path + "/")}
        return sorted(below)

    def make_directory(self, path: str) -> None:
        self.directories.add(path)

    def rename(self, old: str, new: str) -> None:
        self._burn()
        if old in self.directories:
            self.directories.remove(old)
            self.directories.add(new)
            for name in [name for name in self.files if name.startswith(old + "/")]:
                self.files[new + name[len(old) :]] = self.files.pop(name)
        else:
            inode = self._inode(old)
            del self.files[old]
            self.files[new] = inode

    def remove(self, path: str) -> None:
        self._burn()
        self._inode(path)
        del self.files[path]

    def remove_tree(self, path: str) -> None:
        self.directories.discard(path)
        for name in [name for name in self.files if name.startswith(path + "/")]:
            del self.files[name]

    def sync_directory(self, path: str) -> None:
        def inside(name: str) -> bool:
            return name.rpartition("/")[0] == path

        self.durable = {name: inode for name, inode in self.durable.items() if not inside(name)}
        self.durable |= {name: inode for name, inode in self.files.items() if inside(name)}

    def read_all(self, path: str) -> bytes:
        return bytes(self._inode(path).content)

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        self.spend(len(content))
        inode = Inode()
        inode.content = bytearray(content)
        self.files[path] = inode
        if sync:
            inode.synced = bytes(content)
            self.durable[path] = inode

    def lock(self, path: str) -> _Lock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, "locked")
        self.locks.add(path)
        return _Lock(self, path)

    def usage(self, path: str) -> tuple[int, int]:
        return 1 << 30, self.budget if self.budget is not None else 1 << 30


class PowerCut(Exception):
    """Not an OSError: nothing in the code under test may catch it."""
