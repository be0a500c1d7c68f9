"""Files. Appends and reads go through the page cache and are called on the loop; syncs block and belong on a worker thread.

A `File` is opened for one purpose and has no position of its own: it appends at its end and reads anywhere. Paths are plain
strings. Errors are OSError with an errno, in the twin too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from typing import Protocol, Union

Bytes = Union[bytes, bytearray, memoryview]


class File(Protocol):
    @property
    def size(self) -> int:
        """Where the next append goes."""

    def append(self, content: Bytes) -> None:
        """All or nothing: on an error (a full disk) what was written is cut off again and OSError is raised."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes: fewer only at the end of the file."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Blocks until everything appended so far survives a power cut."""

    def fileno(self) -> int | None:
        """For sendfile; None where there is no real file."""

    def close(self) -> None: ...


class FileRange:
    """Part of a file on its way to a socket. It keeps the file open, so a segment may be deleted while it is being sent."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        return self.file.read(self.position, self.size)


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; an absent folder is empty."""

    def make_directory(self, path: str) -> None:
        """With its parents; it may exist."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def read_all(self, path: str) -> bytes: ...

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        """Write a whole small file so that a crash leaves the old or the new content, never a mixture."""

    def lock(self, path: str) -> DirectoryLock:
        """Held until released or the process dies. Raises BlockingIOError when another process holds it."""

    def usage(self, path: str) -> tuple[int, int]:
        """Total and usable bytes of the volume."""


class RealFile:
    __slots__ = ("_descriptor", "_size")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, content: Bytes) -> None:
        try:
            done = os.pwrite(self._descriptor, content, self._size)
            while done < len(content):  # rare: a disk that fills up, or a signal
                written = os.pwrite(self._descriptor, memoryview(content)[done:], self._size + done)
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done += written
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += done

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class _RealLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


class RealDisk:
    """Stateless, so that it pickles to worker processes."""

    def open(self, path: str, *, create: bool = False) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_all(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if sync:
                self.sync_directory(os.path.dirname(path) or ".")
        except OSError as error:
            error.filename = error.filename or path  # a write that fails does not say where
            raise

    def lock(self, path: str) -> DirectoryLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        return _RealLock(descriptor)

    def usage(self, path: str) -> tuple[int, int]:
        usage = shutil.disk_usage(path)
        return usage.total, usage.free
