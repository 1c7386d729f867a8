"""Free receiver space on a ring with two jobs: one word around the ring determines each job's minimum, and a second
word distributes it."""

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.features.replay.control_word import ControlType, control_layout, message_layout
from hdl.features.slots.job_table import FRAME_BITS, JOBS

__all__ = ["ROOM_BITS", "RoomLaps", "rooms_layout"]

ROOM_BITS = 5


def rooms_layout():
    """Layout of the tag of COLLECT and GRANT: superframe number and minimum room of each job's nodes, in
    packets."""
    return data.StructLayout({"number": FRAME_BITS, "rooms": data.ArrayLayout(ROOM_BITS, JOBS)})


class RoomLaps(wiring.Component):
    """Once per window, determine the minimum free receiver space among the nodes of each job, and distribute it.

    Rank 0 sends COLLECT, a single word, when its window opens. The word contains a number of packets for each job,
    its room. Each node lowers its job's room to the number of packets for which the node had space when its own
    window opened. When COLLECT returns to rank 0, the minima circulate as GRANT. A node that receives GRANT in the
    same superframe's window may send that number of packets for its job, otherwise none. The rooms of a job therefore
    depend only on its own nodes, and not on the arrival times of the words.

    A word is offered at ``o`` :attr:`latency` cycle after it arrives at ``i``; throughput is one word per cycle.
    ``o`` and all other outputs are registers, except ``i.ready``, which depends combinationally on ``o.ready``. Other
    messages and words of other superframes are accepted and dropped.

    Members
    -------
    i, o : In, Out(stream of message_layout())
        From the predecessor, and to the successor.
    place : In(place_layout())
        The node's position on the whole ring.
    room : In(5)
        Number of packets for which this node has room.
    window, opens, number : In
        As in :class:`~hdl.features.slots.job_table.JobTable`.
    allowed : Out(5)
        Number of packets that this node may send; valid with ``granted``.
    granted : Out(1)
        Pulse: GRANT has arrived.
    reset_link : In(1)
        While high, everything in progress is dropped.
    kept, due : Signal
        Room when the window opened, and whether a COLLECT must be sent. These are not ports; proofs use them.
    """

    latency = 1

    i: In(stream.Signature(message_layout()))
    o: Out(stream.Signature(message_layout()))
    place: In(place_layout())
    room: In(ROOM_BITS)
    window: In(1)
    opens: In(1)
    number: In(FRAME_BITS)
    allowed: Out(ROOM_BITS)
    granted: Out(1)
    reset_link: In(1)

    def __init__(self):
        super().__init__()
        self.kept, self.due = Signal(ROOM_BITS), Signal()

    def elaborate(self, platform):
        m = Module()
        word, out = self.i.payload, data.View(control_layout(), self.o.payload.data)
        head = data.View(control_layout(), word.data)
        said, says = data.View(rooms_layout(), head.tag), data.View(rooms_layout(), out.tag)
        master, job = self.place.rank == 0, self.place.rank[0]
        kept, due = self.kept, self.due
        free, taken, fits, collect, grant = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            self.i.ready.eq(free & ~due),
            taken.eq(self.i.valid & self.i.ready),
            fits.eq(word.first & word.last & (head.words == 0) & (head.reserved == 0) & self.window
                    & (said.number == self.number) & (self.place.size > 1)),
            collect.eq(fits & (head.type == ControlType.COLLECT)),
            grant.eq(fits & (head.type == ControlType.GRANT) & ~master),
        ]
        m.d.sync += self.granted.eq(taken & (grant | (collect & master)))
        with m.If(taken):
            m.d.sync += self.allowed.eq(Array(said.rooms)[job])
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(due | (taken & (collect | grant))), due.eq(0),
                self.o.payload.first.eq(1), self.o.payload.last.eq(1),
                out.type.eq(Mux(due | (collect & ~master), ControlType.COLLECT, ControlType.GRANT)),
                out.words.eq(0), out.reserved.eq(0), says.number.eq(self.number),
            ]
            for number in range(JOBS):
                least = Mux(due, (1 << ROOM_BITS) - 1, said.rooms[number])
                m.d.sync += says.rooms[number].eq(
                    Mux((job == number) & ~grant & (least > kept), kept, least))
        with m.If(self.opens):
            m.d.sync += [kept.eq(self.room), due.eq(master & (self.place.size > 1))]
        with m.If(self.reset_link):
            m.d.sync += [self.o.valid.eq(0), self.granted.eq(0), due.eq(0), kept.eq(0)]
        return m
