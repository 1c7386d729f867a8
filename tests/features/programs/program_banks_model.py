"""Golden model of a node's two program banks: contents, accepted edits, and runs.

A set is a pass; the set number of a run is the number of passes that precede it. LOAD_PROGRAM writes the idle bank
or, if no program is running, the current bank. A load of slot 0 of queue 0 into the idle bank clears that bank and
starts its digest: the CRC-32 of the words of all its loads, including headers. EDIT schedules the idle bank for the
next set, the RUN of that set swaps the banks, and any load into the idle bank cancels the edit.
"""

import zlib

import numpy as np

from hdl.control.protocol import DESCRIPTOR_WORDS, EDIT_WORDS, RUN_WORDS, Opcode, Status

Command = tuple[int, ...]


def digest_of(words: list[int], begun: int = 0) -> int:
    """CRC-32 of words; ``begun`` is the CRC-32 of all preceding words."""
    return zlib.crc32(np.array(words, "<u4").tobytes(), begun)


class Bank:
    def __init__(self, queues: int, depth: int):
        self.model, self.lengths = 0, [0] * queues
        self._words = [[0] * (DESCRIPTOR_WORDS * depth) for _ in range(queues)]

    @property
    def loaded(self) -> bool:
        """Whether the bank contains any commands."""
        return any(self.lengths)

    @property
    def programs(self) -> list[list[Command]]:
        return [[tuple(words[DESCRIPTOR_WORDS * n:DESCRIPTOR_WORDS * (n + 1)]) for n in range(length)]
                for words, length in zip(self._words, self.lengths, strict=True)]

    def load(self, queue: int, slot: int, words: list[int]) -> None:
        """Write words of a queue's program, starting at a slot; the program ends with the last full command."""
        first = DESCRIPTOR_WORDS * slot
        self._words[queue][first:first + len(words)] = words
        self.lengths[queue] = slot + len(words) // DESCRIPTOR_WORDS


class ProgramBanks:
    def __init__(self, *, queues: int, depth: int):
        self._queues, self._depth = queues, depth
        self.banks = [Bank(queues, depth) for _ in range(2)]
        self.running = self.pending = False
        self.bank = self.set = self.number = self.latest = 0
        self._next = self._due = 0
        self._digest: int | None = None

    @property
    def current(self) -> Bank:
        """The bank that the RUN command executes."""
        return self.banks[self.bank]

    @property
    def idle(self) -> Bank:
        """The bank that the RUN command does not execute."""
        return self.banks[1 - self.bank]

    def answer(self, opcode: int, count: int, body: list[int]) -> tuple[Status, list[int]]:
        """Handle LOAD_PROGRAM, EDIT or RUN; return the status and payload of the response."""
        if opcode == Opcode.LOAD_PROGRAM:
            return self._load(count, body)
        words = {Opcode.EDIT: EDIT_WORDS, Opcode.RUN: RUN_WORDS}[Opcode(opcode)]
        if count != words or len(body) < 2:
            return Status.BAD_LENGTH, []
        if opcode == Opcode.RUN and self.running:
            return Status.BUSY, []
        if len(body) != words:
            return Status.BAD_LENGTH, []
        return (self._run(body) if opcode == Opcode.RUN else self._edit(body)), []

    def _load(self, count: int, body: list[int]) -> tuple[Status, list[int]]:
        if count % DESCRIPTOR_WORDS or not body or (len(body) == 1) != (count == 0):
            return Status.BAD_LENGTH, [0]
        header, words = body[0], body[1:count + 1]
        slot, queue, idle, model = header & 0xFFFF, header >> 16 & 0x7F, bool(header >> 23 & 1), header >> 24
        if queue >= self._queues:
            return Status.BAD_ADDRESS, [0]
        if slot + count // DESCRIPTOR_WORDS > self._depth:
            return Status.TOO_LONG, [0]
        if self.running and not idle:
            return Status.BUSY, [0]
        bank = self.idle if idle else self.current
        if idle:
            self.pending = False
            if queue == slot == 0:
                self._digest = 0
                bank.lengths = [0] * self._queues
            if self._digest is not None:
                self._digest = digest_of([header, *words], self._digest)
        bank.model = model
        bank.load(queue, slot, words)
        return Status.OK if len(body) == count + 1 else Status.BAD_LENGTH, [len(words)]

    def _edit(self, body: list[int]) -> Status:
        number, first, digest = body[0] & 0xFFFF, body[0] >> 16, body[1]
        if number <= self.latest:
            return Status.OLD_EDIT
        if first != self._next:
            return Status.WRONG_SET
        if digest != self._digest or not self.idle.loaded:
            return Status.WRONG_PROGRAM
        self.pending, self._due, self.latest = True, first, number
        return Status.OK

    def _run(self, body: list[int]) -> Status:
        passes, model, first = body[0] & 0xFFFF, body[0] >> 16 & 0xFF, body[2] >> 9 & 0xFFFF
        turns = self.pending and first == self._due
        bank = self.idle if turns else self.current
        if not bank.loaded or bank.model != model:
            return Status.NOT_LOADED
        if turns:
            self.bank, self.pending, self.number, self._digest = 1 - self.bank, False, self.latest, None
        self.set, self._next = first, (first + passes) % (1 << 16)
        self.running = passes > 0
        return Status.OK
