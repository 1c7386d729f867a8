"""Memory that one process writes and another process of the same machine and user reads, without files."""

import contextlib
import mmap
import os
import secrets
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
    """Words in memory that is freed when all processes have closed it or have ended.

    Members
    -------
    words : array of uint32, shape (count,)
        Zeros at first.
    """

    def __init__(self, file: int, count: int, *, written: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if written else 0)
        self._file = file
        self._map = mmap.mmap(file, _TOKEN + 4 * count, mmap.MAP_SHARED, access)
        self.words: npt.NDArray[np.uint32] = np.frombuffer(self._map, np.uint32, offset=_TOKEN)

    @classmethod
    def create(cls, count: int) -> Self:
        """Make memory for a number of words."""
        file = os.memfd_create("gradring", os.MFD_CLOEXEC)
        os.ftruncate(file, _TOKEN + 4 * count)
        memory = cls(file, count, written=True)
        memory._map[:_TOKEN] = secrets.token_bytes(_TOKEN)
        return memory

    @property
    def address(self) -> str:
        """Text by which another process can open the memory while this process has it open."""
        return f"{os.getpid()} {self._file} {len(self.words)} {self._map[:_TOKEN].hex()}"

    @classmethod
    def open(cls, address: str) -> Self | None:
        """Open the memory of another process to read it; None if that process is on another machine, say."""
        with contextlib.suppress(OSError, ValueError):
            process, file, count, token = address.split()
            opened = os.open(f"/proc/{int(process)}/fd/{int(file)}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if os.fstat(opened).st_size == _TOKEN + 4 * int(count):
                    memory = cls(opened, int(count), written=False)
                    if memory._map[:_TOKEN].hex() == token:
                        return memory
            finally:
                os.close(opened)
        return None
