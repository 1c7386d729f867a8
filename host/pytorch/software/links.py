"""Links of a rank to the next rank of a ring and from the previous one: packets over gloo, or in shared memory.

If the next rank is on the same machine, it reads packets in memory of this rank, and gloo carries only messages which
say that a packet is complete, or that all packets of a buffer have been read.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import AllreduceOptions, ReduceOp

from host.driver.diagnosis import RingError
from host.pytorch.software.shared_memory import SharedMemory, supported

__all__ = ["BUFFERS", "Links"]

Bits = npt.NDArray[np.uint32]
Wait = Callable[[], None]

#: Number of buffers: a rank computes in one, receives packets in another one, and the third one may still be sent.
BUFFERS = 3

#: Tags of words that neighbours exchange, of packets or messages about them, and of messages about buffers that have
#: been read.
_WORDS, _PACKETS, _READ = 1, 2, 3

#: Number of bytes of an address of shared memory.
_TEXT = 128


class Links:
    """Links of one rank over a process group, with buffers for packets.

    All ranks must call the same methods in the same order, with arrays of equal sizes.

    Parameters
    ----------
    group : ProcessGroupGloo
        Backend that nothing else uses.
    rank, size : int
        Number of this rank, and number of ranks.
    shared : bool
        Whether ranks on the same machine exchange packets in shared memory.
    number : int, optional
        Number of this rank among all ranks, for messages, if the group has only some of them.

    Members
    -------
    numbers : tuple of int
        Number of each rank among all ranks.
    """

    def __init__(self, group: Any, rank: int, size: int, *, shared: bool = True, number: int | None = None) -> None:
        self._group, self._shared = group, shared and size > 1 and supported()
        self.rank, self.size = rank, size
        self._next, self.previous = (rank + 1) % size, (rank - 1) % size
        self._words = 0
        self._written: SharedMemory | None = None
        self._read: SharedMemory | None = None
        self._own = np.zeros((BUFFERS, 0), np.uint32)
        self.number = rank if number is None else number
        self.numbers = tuple(range(size)) if number is None else tuple(
            self.all_rows(np.array([number], np.uint32))[:, 0].tolist())

    def equal(self, text: str) -> bool:
        """Return whether all ranks have the same text, on all ranks."""
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
        # The largest of the complements is the complement of the smallest.
        both = np.concatenate([digest, 255 - digest])
        return bool(np.array_equal(self.largest(both), both))

    def texts(self, text: str) -> list[str]:
        """Return the texts of all ranks."""
        own = np.frombuffer(text.encode(), np.uint8)
        length = int.from_bytes(self.largest(np.array([len(own)], ">u4").view(np.uint8)).tobytes(), "big")
        # The largest bytes are at least as large as the longest length.
        padded = np.zeros(-(-length // 4) * 4, np.uint8)
        padded[:len(own)] = own
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in self.all_rows(padded.view(np.uint32))]

    def reserve(self, words: int) -> None:
        """Make every buffer large enough for a number of words; its contents are lost if it is not."""
        if words <= self._words:
            return
        # Sums of increasing lengths do not make new buffers each time.
        self._words = words = max(words, self._words * 3 // 2)
        self._written = self._read = None
        if self._shared:
            written = SharedMemory.create(BUFFERS * words)
            try:
                self._read = SharedMemory.open(self._exchange_text(written.address))
                # The previous rank must know whether its memory is read.
                sent = self._send(np.full(1, self._read is not None, np.uint32), self.previous, _READ)
                answer = np.zeros(1, np.uint32)
                self._receive(answer, self._next, _READ)()
                sent()
            finally:
                written.seal()
            self._written = written if answer[0] else None
        needed = self._written is None or self._read is None
        self._own = np.zeros((BUFFERS, words if needed else 0), np.uint32)

    def outgoing(self, hop: int) -> Bits:
        """Buffer for the packets that this rank sends in a hop."""
        written = self._own if self._written is None else self._written.words.reshape(BUFFERS, -1)
        buffer: Bits = written[hop % BUFFERS]
        return buffer

    def incoming(self, hop: int) -> Bits:
        """Buffer of the packets that this rank receives in a hop, which the previous rank has sent one hop before.

        Without shared memory, it is the buffer of the packets to send.
        """
        buffer: Bits = (self._own[hop % BUFFERS] if self._read is None else
                        self._read.words.reshape(BUFFERS, -1)[(hop - 1) % BUFFERS])
        return buffer

    def send(self, packet: Bits) -> Wait:
        """Begin to send a packet of an outgoing buffer; the returned function waits until gloo has sent it."""
        return self._send(packet if self._written is None else packet[:1], self._next, _PACKETS)

    def receive(self, packet: Bits) -> Wait:
        """Begin to receive a packet of an incoming buffer; the returned function waits until it is there."""
        return self._receive(packet if self._read is None else np.empty(1, np.uint32), self.previous, _PACKETS)

    def release(self) -> Wait:
        """Allow the previous rank to overwrite the buffer that it has sent first of those not released yet."""
        return _nothing if self._read is None else self._send(np.zeros(1, np.uint32), self.previous, _READ)

    def await_release(self) -> Wait:
        """Return a function that waits until the next rank has called :meth:`release` once more."""
        return _nothing if self._written is None else self._receive(np.zeros(1, np.uint32), self._next, _READ)

    def exchange(self, words: Bits) -> Bits:
        """Send words to the next rank, and return as many words of the previous one."""
        if self.size == 1:
            return words
        other = np.empty_like(words)
        sent = self._send(words.copy(), self._next, _WORDS)
        self._receive(other, self.previous, _WORDS)()
        sent()
        return other

    def _exchange_text(self, text: str) -> str:
        """Send a short text to the next rank, and return that of the previous one."""
        return self.exchange(np.frombuffer(text.encode().ljust(_TEXT), np.uint32)).tobytes().decode().rstrip()

    def abort(self) -> None:
        """Close the connections, so that operations of other ranks fail."""
        self._group.abort()

    def largest(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Largest values of all ranks."""
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.MAX
        tensor = torch.from_numpy(values.copy())
        self._begun(lambda: self._group.allreduce([tensor], options))()
        result: npt.NDArray[np.uint8] = tensor.numpy()
        return result

    def all_rows(self, words: Bits) -> Bits:
        """Return the words of all ranks, as an array of shape (ranks, count)."""
        rows = np.empty((self.size, len(words)), np.uint32)
        self._begun(lambda: self._group.allgather(
            [[torch.from_numpy(row.view(np.int32)) for row in rows]], [torch.from_numpy(words.view(np.int32))]))()
        return rows

    def _send(self, words: Bits, rank: int, tag: int) -> Wait:
        return self._begun(lambda: self._group.send([torch.from_numpy(words.view(np.int32))], rank, tag))

    def _receive(self, words: Bits, rank: int, tag: int) -> Wait:
        return self._begun(lambda: self._group.recv([torch.from_numpy(words.view(np.int32))], rank, tag))

    def _begun(self, begin: Callable[[], Any]) -> Wait:
        """Begin a message; return a function that waits for its end."""
        def wait() -> None:
            try:
                begun.wait()
            except RuntimeError as error:
                raise self._lost(error) from None

        try:
            begun = begin()
        except RuntimeError as error:
            raise self._lost(error) from None
        return wait

    def _lost(self, error: RuntimeError) -> RingError:
        reason = str(error).partition("\n")[0]
        previous, following = self.numbers[self.previous], self.numbers[self._next]
        ranks = f"ranks {previous} and {following}" if self.size > 2 else f"rank {following}"
        if "imed out" in reason:
            text = (f"Rank {self.number} has waited for {ranks} until the timeout of init_process_group(): look for "
                    f"what holds them up")
        else:
            text = f"Rank {self.number} has lost {ranks}, whose own messages say why"
        return RingError(f"{text} ({reason})", cause=None, events=[])


def _nothing() -> None:
    """What there is to wait for without shared memory."""
