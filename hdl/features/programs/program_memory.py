"""Memory for the programs of a node: the commands of each queue, loaded once by the host."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import (
    DEPTH_MAX,
    bank_state_layout,
    begins_bank,
    check_queues,
    program_header_layout,
    program_word_layout,
)
from hdl.control.protocol import DESCRIPTOR_WORDS

__all__ = ["ProgramMemory"]

class ProgramMemory(wiring.Component):
    """Store the commands of every queue's program.

    A load consists of a header followed by the 16 words of each command. The header truncates the queue's program at
    the header's slot; the last word of each command then extends it by this command, so that a program contains only
    completely stored commands. Words after the last slot are dropped.

    ``data`` is the word addressed in the previous cycle; a word can be read from the cycle after it is accepted.

    With two banks, both contain programs. Reads, ``lengths`` and ``model`` refer to ``bank``, and so do loads, unless
    the header is for the other, idle bank. A header for queue 0 and slot 0 of the idle bank empties all its programs.

    Parameters
    ----------
    queues : int
        Number of queues: 1 to 3.
    depth : int
        Maximum number of commands in a program: 1 to 1,024.
    banks : int
        1 or 2.

    Members
    -------
    program : In(stream of program_word_layout())
        Always ready.
    serving, slot, word : In
        Queue, slot and index of the word to read.
    data : Out(32)
    lengths : Out(array of 16 bits)
        Number of commands in each queue's program.
    model : Out(8)
        Number in the latest header.
    bank : In(1), with two banks
        Must not change between the header and the words of a load.
    idle : Out(bank_state_layout()), with two banks
        State of the other bank.
    """

    def __init__(self, *, queues, depth, banks=1):
        check_queues(queues)
        if not isinstance(depth, int) or not 1 <= depth <= DEPTH_MAX:
            raise ValueError(f"Program depth must be between 1 and {DEPTH_MAX}, not {depth!r}")
        if banks not in (1, 2):
            raise ValueError(f"Bank count must be 1 or 2, not {banks!r}")
        self._queues = queues
        self._depth = depth
        self._banks = banks
        super().__init__({
            "program": In(stream.Signature(program_word_layout())),
            "serving": In(range(max(queues, 2))),
            "slot": In(range(max(depth, 2))),
            "word": In(range(DESCRIPTOR_WORDS)),
            "data": Out(32),
            "lengths": Out(data.ArrayLayout(16, queues)),
            "model": Out(8),
            **({"bank": In(1), "idle": Out(bank_state_layout())} if banks > 1 else {}),
        })

    @property
    def depth(self):
        return self._depth

    def elaborate(self, platform):
        m = Module()
        places = 1 << len(self.slot)  # number of slots per queue; the first `depth` are used
        m.submodules.memory = memory = Memory(
            shape=32, depth=self._queues * self._banks * places * DESCRIPTOR_WORDS, init=[],
            attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port()
        word = self.program.payload
        header = Signal(program_header_layout(banks=self._banks))
        slot = Signal(range(self._depth + 1))
        index = Signal(range(DESCRIPTOR_WORDS))
        queue = Signal.like(self.serving)
        known = Signal()  # the queue exists
        target = Signal()  # bank being loaded
        states = self._states(m)
        reads, writes = ([self.bank], [target]) if self._banks > 1 else ([], [])

        m.d.comb += [
            header.eq(word.data),
            self.program.ready.eq(1),
            write.addr.eq(Cat(index, slot[:len(self.slot)], *writes, queue)),
            write.data.eq(word.data),
            write.en.eq(self.program.valid & ~word.first & known & (slot != self._depth)),
            read.addr.eq(Cat(self.word, self.slot, *reads, self.serving)),
            self.data.eq(read.data),
        ]
        with m.If(self.program.valid & word.first):
            start = Mux(header.slot < self._depth, header.slot, self._depth)
            m.d.sync += [
                index.eq(0), slot.eq(start), queue.eq(header.queue), known.eq(header.queue < self._queues),
            ]
            if self._banks == 1:
                self._begin(m, header, start, *states[0])
            else:
                m.d.sync += target.eq(self.bank ^ header.idle)
                for bank, state in enumerate(states):
                    with m.If(self.bank ^ header.idle == bank):
                        self._begin(m, header, start, *state)
        with m.Elif(write.en):
            m.d.sync += index.eq(index + 1)
            with m.If(index == DESCRIPTOR_WORDS - 1):
                m.d.sync += slot.eq(slot + 1)
                for bank, (lengths, _) in enumerate(states):
                    for n in range(self._queues):
                        with m.If((queue == n) & (target == bank) if self._banks > 1 else queue == n):
                            m.d.sync += lengths[n].eq(slot + 1)
        return m

    def _states(self, m):
        """Return the lengths and the model number of the programs in each bank."""
        if self._banks == 1:
            return [(self.lengths, self.model)]
        states = [(Signal(self.lengths.shape(), name=f"lengths_{bank}"), Signal(8, name=f"model_{bank}"))
                  for bank in range(2)]
        (first, first_model), (second, second_model) = states
        m.d.comb += [
            self.lengths.eq(Mux(self.bank, second, first)),
            self.model.eq(Mux(self.bank, second_model, first_model)),
            self.idle.model.eq(Mux(self.bank, first_model, second_model)),
            self.idle.loaded.eq(Mux(self.bank, first, second).any()),
        ]
        return states

    def _begin(self, m, header, start, lengths, model):
        """Accept a program header: set the program length of the queue that it names to ``start``, and store its
        model number in ``model``."""
        m.d.sync += model.eq(header.model)
        for n in range(self._queues):
            with m.If(header.queue == n):
                m.d.sync += lengths[n].eq(start)
        if self._banks > 1:
            with m.If(begins_bank(header)):
                m.d.sync += lengths.eq(0)
