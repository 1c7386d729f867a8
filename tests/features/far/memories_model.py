"""Cycle-accurate golden model of :mod:`hdl.features.far.memories`, for all ports."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

#: Maximum number of row reads outstanding at the far memory.
OUTSTANDING = 65


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Request for a row, where ``row`` is the index in the port's memory or in the far memory."""

    row: int
    keep: int = 0
    elements: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    reads: Sequence[Request | None]
    writes: Sequence[Request | None]
    ready: bool
    answer: int | None
    abandon: Sequence[bool]
    link_reset: bool
    timeout: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    read_ready: list[bool]
    write_ready: list[bool]
    responses: list[bool]
    elements: int
    far: Request | None
    silent: bool
    lost: bool
    strays: int = 0


@dataclasses.dataclass
class _Port:
    base: int
    group: int
    host: bool
    rows: int | None = None  # number of rows in the port's window, if the port is guarded
    queue: int = 0

    def is_outside(self, request: Request) -> bool:
        return self.rows is not None and request.row >= self.rows


class FarMemories:
    """Golden model of :class:`~hdl.features.far.memories.FarMemories`.

    Ports are listed by memory: first the engines' ports of a memory, then its host port.
    """

    def __init__(self, bases: Mapping[str, int], readers: Mapping[str, Sequence[int]],
                 writers: Mapping[str, int], windows: Mapping[str, tuple[int, int]] | None = None,
                 owners: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None) -> None:
        self.groups = 1 + max(group for groups in readers.values() for group in groups)
        host = self.groups
        self.readers = [_Port(base, group, group == host) for name, base in bases.items()
                        for group in (*readers[name], host)]
        self.writers = [_Port(base, 0, last) for name, base in bases.items()
                        for last in (*[False] * writers[name], True)]
        self.guarded = windows is not None
        if windows is not None and owners is not None:
            for kind, ports in enumerate((self.readers, self.writers)):
                engines = iter([port for port in ports if not port.host])
                for name, (first, rows) in windows.items():
                    for queue in owners[name][kind]:
                        port = next(engines)
                        port.base, port.rows, port.queue = port.base + first, rows, queue
        self._strays, self._blank = 0, False  # stray accesses (one bit per queue); whether to answer with zeros
        #: Writers in order of priority, with the engines before the host.
        self._order = sorted(range(len(self.writers)), key=lambda n: self.writers[n].host)
        self._far: Request | None = None
        self._served, self._wrote = 0, False
        #: Readers waiting for a row, oldest first, each with a flag that shows whether the row is still wanted.
        self._owed: collections.deque[list[int]] = collections.deque()
        self._responses = [False] * len(self.readers)
        self._elements = 0
        self._idle, self._silent = 0, False
        self._zeros, self._of_host = 0, 0

    def _may_read(self, port: _Port, inputs: Inputs, forgets: bool) -> bool:
        """Whether a reader's request may be granted in this cycle."""
        away = self._silent if port.host else inputs.abandon[port.group]
        stale = any(self.readers[n].group == port.group and not wanted for n, wanted in self._owed)
        return not (away or stale or (port.host and self._zeros) or forgets or len(self._owed) == OUTSTANDING)

    def step(self, inputs: Inputs) -> Outputs:
        """Return the outputs of this cycle, and advance the model by one cycle."""
        taken = self._far is not None and inputs.ready
        answer = 0 if self._blank else inputs.answer
        speaks = taken or answer is not None
        silent = self._silent
        forgets = inputs.link_reset and silent and not speaks and not self.guarded

        # Select the read and the write that are granted in this cycle.
        free = self._far is None or inputs.ready
        count = len(self.readers)
        turns = [(self._served + 1 + n) % count for n in range(count)]
        reads = next((n for n in turns if inputs.reads[n] is not None
                      and self._may_read(self.readers[n], inputs, forgets)), None)
        asked = None if reads is None else inputs.reads[reads]
        outside = reads is not None and asked is not None and self.readers[reads].is_outside(asked)
        if outside and self._owed:
            reads = None
        writes = next((n for n in self._order if inputs.writes[n] is not None
                       and not (silent and self.writers[n].host)), None)
        read = reads if free and (self._wrote or writes is None) else None
        write = writes if free and not (reads is not None and self._wrote) else None
        read_ready = [n == read or (port.host and silent) for n, port in enumerate(self.readers)]
        # A writer is ready, even without a request, if no writer of higher priority has a request.
        goes, write_ready = write is not None, [False] * len(self.writers)
        for n in self._order:
            write_ready[n] = goes
            if inputs.writes[n] is not None and not (silent and self.writers[n].host):
                goes = False
        write_ready = [ready or (port.host and silent) for ready, port in zip(write_ready, self.writers, strict=True)]

        # Accept requests of the host while the far memory does not respond.
        hosts = [n for n, port in enumerate(self.readers) if port.host]
        asks = [n for n in hosts if inputs.reads[n] is not None]
        given_zeros = silent and bool(asks)
        left = sum(bool(wanted) for n, wanted in self._owed if self.readers[n].host) if silent else 0
        drops = silent and any(request is not None and port.host
                               for request, port in zip(inputs.writes, self.writers, strict=True))
        shown = Outputs(read_ready=read_ready, write_ready=write_ready, responses=self._responses,
                        elements=self._elements, far=self._far, silent=silent,
                        lost=given_zeros or left > 0 or drops, strays=self._strays)

        # Deliver the answers that arrive in this cycle.
        self._responses = [False] * count
        waits = self._far is not None or bool(self._owed)
        for entry in self._owed:
            port = self.readers[entry[0]]
            if silent if port.host else inputs.abandon[port.group]:
                entry[1] = False
        zero = self._zeros > 0 and inputs.answer is None
        if answer is not None and self._owed:
            n, wanted = self._owed.popleft()
            self._responses[n] = bool(wanted)
        if zero:
            self._responses[self._of_host] = True
        self._elements = answer or 0
        self._zeros += given_zeros + left - zero

        # Register the next request to the far memory.
        if free:
            self._far = None
        self._strays, self._blank = 0, read is not None and outside
        if read is not None:
            request = inputs.reads[read]
            assert request is not None
            if outside:
                self._strays |= 1 << self.readers[read].queue
            else:
                self._far = Request(row=request.row + self.readers[read].base)
            self._owed.append([read, True])
            self._served, self._wrote = read, False
        for n in asks:
            if read_ready[n]:
                self._of_host = n
        if write is not None:
            request = inputs.writes[write]
            assert request is not None
            if self.writers[write].is_outside(request):
                self._strays |= 1 << self.writers[write].queue
            else:
                self._far = dataclasses.replace(request, row=request.row + self.writers[write].base)
            self._wrote = True
        if forgets:
            self._owed.clear()
            if self._far is not None and self._far.elements is None:
                self._far = None
        late = self._idle >= inputs.timeout
        self._silent = waits and not speaks and late
        self._idle = 0 if speaks or not waits else self._idle + (not late)
        return shown
