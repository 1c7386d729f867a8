"""Memory for commands pushed by the host, with one area per queue of the node."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import check_queues
from hdl.control.protocol import DESCRIPTOR_WORDS, descriptor_layout

__all__ = ["PushedCommands", "queue_of"]


def queue_of(operation, queues):
    """Queue for a pushed command: the last queue, unless the operation specifies one."""
    return queues - 1 if operation.queue is None else min(operation.queue, queues - 1)


class PushedCommands(wiring.Component):
    """Store pushed commands in a separate memory area for each queue of the node.

    A command is stored as 16 words and enters the queue one cycle after its last word is taken. A word with ``first``
    always begins a new command, and its operation selects the queue; operations that are allowed in any queue, or
    that the node does not have, go to the last queue.

    ``data`` is the word of the oldest command at the address given in the previous cycle.

    Parameters
    ----------
    operations : tuple of OperationDescription
        Operations of the node.
    queues : int
        Number of queues, 1 to 3.
    depth : int
        Capacity of each queue in commands, 1 to 255.

    Members
    -------
    commands : In(stream of descriptor_layout())
        Words of each command from the host. A command without its last word is dropped silently.
    full : Out(1)
        ``commands`` is not ready, since a queue has no room.
    serving, word : In
        Queue to read from, and index of the word in the queue's oldest command.
    data : Out(32)
    levels : Out(array of range(depth + 1))
        Number of commands in each queue.
    removed : In(queues)
        Pulse: the oldest command of a queue leaves it.
    """

    def __init__(self, *, operations, queues, depth):
        check_queues(queues)
        if not isinstance(depth, int) or not 1 <= depth <= 255:
            raise ValueError(f"Queue depth must be between 1 and 255, not {depth!r}")
        self._operations = tuple(operations)
        self._queues = queues
        self._depth = depth
        super().__init__({
            "commands": In(stream.Signature(descriptor_layout())),
            "full": Out(1),
            "serving": In(range(max(queues, 2))),
            "word": In(range(DESCRIPTOR_WORDS)),
            "data": Out(32),
            "levels": Out(data.ArrayLayout(range(depth + 1), queues)),
            "removed": In(queues),
        })

    @property
    def depth(self):
        return self._depth

    def elaborate(self, platform):
        m = Module()
        places = range(max(self._depth, 2))
        slots = 1 << Signal(places).shape().width
        m.submodules.memory = memory = Memory(
            shape=32, depth=self._queues * slots * DESCRIPTOR_WORDS, init=[], attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port()
        word = self.commands.payload
        position = Signal(range(DESCRIPTOR_WORDS))  # index of the host's word in its command
        at = Mux(word.first, 0, position)
        target = Signal.like(self.serving)  # queue that the host's word goes to
        chosen = Signal.like(self.serving)
        added = Signal()
        tails = [Signal(places, name=f"tail_{n}") for n in range(self._queues)]
        fronts = [Signal(places, name=f"front_{n}") for n in range(self._queues)]

        m.d.comb += target.eq(chosen)
        with m.If(word.first):
            m.d.comb += target.eq(self._queues - 1)
            with m.Switch(word.data[:8]):
                for operation in self._operations:
                    with m.Case(operation.code):
                        m.d.comb += target.eq(queue_of(operation, self._queues))
        m.d.comb += [
            self.full.eq(Cat(level == self._depth for level in self.levels).any()),
            self.commands.ready.eq(~self.full),
            write.addr.eq(Cat(at, Array(tails)[target], target)),
            write.data.eq(word.data),
            write.en.eq(self.commands.valid & self.commands.ready),
            added.eq(write.en & word.last),
            read.addr.eq(Cat(self.word, Array(fronts)[self.serving], self.serving)),
            self.data.eq(read.data),
        ]
        with m.If(write.en):
            m.d.sync += [position.eq(at + 1), chosen.eq(target)]
        for n, (tail, front) in enumerate(zip(tails, fronts, strict=True)):
            arrives = added & (target == n)
            m.d.sync += self.levels[n].eq(self.levels[n] + arrives - self.removed[n])
            with m.If(arrives):
                m.d.sync += tail.eq(_following(tail, self._depth))
            with m.If(self.removed[n]):
                m.d.sync += front.eq(_following(front, self._depth))
        return m


def _following(index, depth):
    return Mux(index == depth - 1, 0, index + 1)
