"""Memory that one process writes and another process of the same machine and user reads, without files."""

import contextlib
import mmap
import os
import secrets
import stat
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["SharedMemory", "supported"]

#: Number of bytes at the start of the memory that identify it.
_TOKEN = 16


def supported() -> bool:
    """Whether the system has memory of this kind, as Linux does."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class SharedMemory:
    """Words in memory that is freed when all processes have dropped it or have ended.

    Members
    -------
    words : array of uint32, shape (count,)
        Zeros at first.
    """

    def __init__(self, file: int, count: int, *, written: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if written else 0)
        self._file: int | None = None
        # The map has a descriptor of its own.
        self._map = mmap.mmap(file, _TOKEN + 4 * count, mmap.MAP_SHARED, access)
        self.words: npt.NDArray[np.uint32] = np.frombuffer(self._map, np.uint32, offset=_TOKEN)

    @classmethod
    def create(cls, count: int) -> Self:
        """Create memory for a number of words."""
        file = os.memfd_create("gradring", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, _TOKEN + 4 * count)
            memory = cls(file, count, written=True)
        except BaseException:
            os.close(file)
            raise
        memory._file = file
        memory._map[:_TOKEN] = secrets.token_bytes(_TOKEN)
        return memory

    @property
    def address(self) -> str:
        """Text with which another process can open the memory until :meth:`seal` is called."""
        return f"{os.getpid()} {self._file} {len(self.words)} {self._map[:_TOKEN].hex()}"

    def seal(self) -> None:
        """Close the file, so that no more processes can open the memory."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @classmethod
    def open(cls, address: str) -> Self | None:
        """Open the memory of another process for reading; return None if this is impossible.

        It is impossible, for example, if the other process is on another machine. The token in the address excludes
        that the file is another one by chance.
        """
        with contextlib.suppress(OSError, ValueError):
            process, file, count, token = address.split()
            path, size = f"/proc/{int(process)}/fd/{int(file)}", _TOKEN + 4 * int(count)
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size != size:
                return None
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                memory = cls(opened, int(count), written=False)
            finally:
                os.close(opened)
            if memory._map[:_TOKEN].hex() == token:
                return memory
        return None
