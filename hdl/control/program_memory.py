"""Memory for the programs of a node: the commands of each queue, which the host loads once."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import DESCRIPTOR_WORDS

__all__ = ["DEPTH_MAX", "QUEUES_MAX", "ProgramMemory", "check_queues", "program_header_layout", "program_word_layout"]

#: Most queues of a node.
QUEUES_MAX = 3

#: Most commands of a program: counts of commands are compared modulo 2^16, see :mod:`hdl.control.scoreboard`.
DEPTH_MAX = 1024


def check_queues(queues, *, least=1):
    """Raise ValueError unless ``queues`` is a number of queues that a node can have."""
    if not isinstance(queues, int) or not least <= queues <= QUEUES_MAX:
        raise ValueError(f"Queue count must be between {least} and {QUEUES_MAX}, not {queues!r}")


def program_header_layout():
    """First word of a load: the queue, the slot of the first command that follows, and the program's number."""
    return data.StructLayout({"slot": 16, "queue": 8, "model": 8})


def program_word_layout():
    """Word of a program: ``first`` makes it a :func:`program_header_layout`, the others belong to commands."""
    return data.StructLayout({"data": 32, "first": 1})


class ProgramMemory(wiring.Component):
    """Memory of the commands of every queue's program.

    A load begins with a header, and goes on with the 16 words of each command. The program of the queue ends in front
    of the header's slot, and one command later with the last word of each command: a program is longer by a command
    only once the whole command is there. Words behind the last slot are dropped.

    ``data`` is the word that was addressed one cycle before, and a word can be read from the cycle after it was taken
    on.

    Parameters
    ----------
    queues : int
        Queues; between 1 and 3.
    depth : int
        Commands of a program; between 1 and 1,024.

    Members
    -------
    program : In(stream of program_word_layout())
        Always ready.
    serving, slot, word : In
        Queue, slot and place of the word to read.
    data : Out(32)
    lengths : Out(array of 16 bits)
        Commands in the program of each queue.
    model : Out(8)
        Number in the latest header.
    """

    def __init__(self, *, queues, depth):
        check_queues(queues)
        if not isinstance(depth, int) or not 1 <= depth <= DEPTH_MAX:
            raise ValueError(f"Program depth must be between 1 and {DEPTH_MAX}, not {depth!r}")
        self._queues = queues
        self._depth = depth
        super().__init__({
            "program": In(stream.Signature(program_word_layout())),
            "serving": In(range(max(queues, 2))),
            "slot": In(range(max(depth, 2))),
            "word": In(range(DESCRIPTOR_WORDS)),
            "data": Out(32),
            "lengths": Out(data.ArrayLayout(16, queues)),
            "model": Out(8),
        })

    @property
    def depth(self):
        return self._depth

    def elaborate(self, platform):
        m = Module()
        places = 1 << len(self.slot)  # of each queue, of which the first `depth` are used
        m.submodules.memory = memory = Memory(
            shape=32, depth=self._queues * places * DESCRIPTOR_WORDS, init=[], attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port()
        word = self.program.payload
        header = Signal(program_header_layout())
        slot = Signal(range(self._depth + 1))
        place = Signal(range(DESCRIPTOR_WORDS))
        queue = Signal.like(self.serving)
        known = Signal()  # the queue is one of those that there are

        m.d.comb += [
            header.eq(word.data),
            self.program.ready.eq(1),
            write.addr.eq(Cat(place, slot[:len(self.slot)], queue)),
            write.data.eq(word.data),
            write.en.eq(self.program.valid & ~word.first & known & (slot != self._depth)),
            read.addr.eq(Cat(self.word, self.slot, self.serving)),
            self.data.eq(read.data),
        ]
        with m.If(self.program.valid & word.first):
            start = Mux(header.slot < self._depth, header.slot, self._depth)
            m.d.sync += [
                place.eq(0), slot.eq(start), queue.eq(header.queue), known.eq(header.queue < self._queues),
                self.model.eq(header.model),
            ]
            for n in range(self._queues):
                with m.If(header.queue == n):
                    m.d.sync += self.lengths[n].eq(start)
        with m.Elif(write.en):
            m.d.sync += place.eq(place + 1)
            with m.If(place == DESCRIPTOR_WORDS - 1):
                m.d.sync += slot.eq(slot + 1)
                for n in range(self._queues):
                    with m.If(queue == n):
                        m.d.sync += self.lengths[n].eq(slot + 1)
        return m
