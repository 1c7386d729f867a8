"""Cycle-accurate golden model of :mod:`hdl.features.compute.memory_access`."""

import collections
import dataclasses

_DEPTH = 9
#: Capacity of a skid buffer, in beats.
_SKID = 2
#: Indices of the writable memories.
_WRITABLE = (0, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    request: tuple[int, int] | None
    response_ready: bool
    write: tuple[int, int, int] | None
    read_ready: tuple[bool, bool, bool]
    write_ready: tuple[bool, bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    request_ready: bool
    response: int | None
    write_ready: bool
    settled: bool
    read: tuple[int, int] | None
    answering: tuple[int, int] | None
    write: tuple[int, int, int] | None


class MemoryAccess:
    """Cycle-accurate model of the memory access unit."""

    def __init__(self) -> None:
        self._asked: collections.deque[tuple[int, int]] = collections.deque()
        self._writes: collections.deque[tuple[int, int, int]] = collections.deque()
        self._answers: collections.deque[int] = collections.deque()
        self._coming: list[tuple[int, int] | None] = [None, None]  # (memory, row) of reads in flight, oldest first
        self.granted = 0
        self._departed = 0

    def outputs(self) -> Outputs:
        asks = bool(self._asked) and self.granted - self._departed < _DEPTH
        return Outputs(
            request_ready=len(self._asked) < _SKID, response=self._answers[0] if self._answers else None,
            write_ready=len(self._writes) < _SKID, settled=not self._writes,
            read=self._asked[0] if asks else None, answering=self._coming[0],
            write=self._writes[0] if self._writes and self._writes[0][0] in _WRITABLE else None)

    def step(self, inputs: Inputs) -> None:
        now = self.outputs()
        if now.response is not None and inputs.response_ready:
            self._answers.popleft()
            self._departed += 1
        if now.answering is not None:
            self._answers.append(now.answering[1])
        granted = now.read is not None and inputs.read_ready[now.read[0]]
        self._coming = [self._coming[1], (self._asked[0][0], self.granted) if granted else None]
        if granted:
            self._asked.popleft()
            self.granted += 1
        if self._writes:
            space = self._writes[0][0]
            if space not in _WRITABLE or inputs.write_ready[_WRITABLE.index(space)]:
                self._writes.popleft()
        if inputs.request is not None and now.request_ready:
            self._asked.append(inputs.request)
        if inputs.write is not None and now.write_ready:
            self._writes.append(inputs.write)
