"""Fixed time slots for two jobs on one ring, derived only from TIME and independent of traffic."""

import dataclasses

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.slots.layouts import GAP
from hdl.ring.header import packet_words

__all__ = ["FRAME_BITS", "JOBS", "PAIR_BITS", "SHIFT_BITS", "JobFrame", "JobTable", "slot_layout"]

#: Number of jobs on a ring; rank mod 2 selects a node's job.
JOBS = 2
#: Width in bits of the low part of a superframe's number, and of the delay by which a node's slots follow TIME.
FRAME_BITS, SHIFT_BITS = 6, 16

#: Minimum length in cycles of the window for control words, and minimum number of slot pairs in a superframe.
_MIN_WINDOW, _MIN_PAIRS = 256, 7
#: Latency around the ring, in cycles, that every superframe must support; number of bits of a slot pair's index.
_MIN_WAY, PAIR_BITS = 240, 2
#: Number of cycles at the beginning and at the end of the window in which no control words are sent, as they could
#: collide with words of slots.
_HEAD, _TAIL = 4, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFrame:
    """Shape of a superframe: a window for control words, followed by alternating slots of both jobs.

    Parameters
    ----------
    longest : int
        Number of words of the longest packet.
    """

    longest: int

    def __post_init__(self):
        if isinstance(self.longest, bool) or not isinstance(self.longest, int) or not 2 <= self.longest <= 1000:
            raise ValueError(f"Longest packet must be an integer from 2 to 1000 words, not {self.longest!r}")

    @classmethod
    def of(cls, config):
        """Return the superframe shape for nodes with this configuration."""
        return cls(longest=packet_words(config.segment))

    @property
    def slot(self):
        """Length of a slot in cycles."""
        return self.longest + GAP

    @property
    def cycles(self):
        """Length of a superframe in cycles, a power of two so that the position in it follows from TIME."""
        return 1 << (_MIN_PAIRS * JOBS * self.slot + _MIN_WINDOW - 1).bit_length()

    @property
    def pairs(self):
        """Number of slots of each job."""
        return (self.cycles - _MIN_WINDOW) // (JOBS * self.slot)

    @property
    def window(self):
        """Length of the window before the first slot, in cycles."""
        return self.cycles - self.pairs * JOBS * self.slot

    @property
    def kept(self):
        """Number of slot pairs (2 or 4) whose packets rank 0 can store; it forwards each packet ``kept`` - 1 pairs
        later."""
        return 2 if JOBS * self.slot >= _MIN_WAY else 4

    @property
    def way(self):
        """Maximum number of cycles that a word may take around the ring to return to rank 0 in time."""
        return (self.kept - 1) * JOBS * self.slot - 4

    @property
    def control(self):
        """First cycle in which control words may be sent, and the cycle after the last one."""
        return _HEAD, self.window - _TAIL


def slot_layout():
    """Layout of a node's slot state. A slot begins in the next cycle (``soon``) or in this one (``starts``). In
    slots of its own job the node ``drives`` and accepts arriving words; in slots of the other job a packet
    ``passes``. ``pair`` contains the low bits of the slot pair number, which keeps counting across superframes."""
    return data.StructLayout({"soon": 1, "starts": 1, "drives": 1, "passes": 1, "pair": PAIR_BITS})


class JobTable(wiring.Component):
    """Generate the slots of superframes; a superframe begins when TIME is a multiple of its length.

    A superframe consists of a window for control words, followed by a slot of job 0, a slot of job 1, and so on.
    Slots depend only on TIME. When TIME becomes valid, a node starts at the next window.

    All outputs except ``soon`` are registers, :attr:`latency` cycles after TIME; ``soon`` depends only on registers.
    If TIME is set back, the current slot becomes longer; if it is set forward, the slot becomes shorter.

    Parameters
    ----------
    frame : JobFrame

    Members
    -------
    now : In(32)
    valid : In(1)
    shift : In(16)
        TIME, whether it is valid, and the number of cycles by which slots of this node begin later.
    job : In(1)
    slot : Out(slot_layout())
    window : Out(1)
        The window is open.
    opens : Out(1)
        Pulse in the first cycle of the window.
    control : Out(1)
        Control words may leave: in the window except for its first 4 and last 8 cycles, and while TIME is not valid.
    number : Out(6)
        Low bits of the number of the window's superframe.
    """

    latency = 2

    now: In(32)
    valid: In(1)
    shift: In(SHIFT_BITS)
    job: In(1)
    slot: Out(slot_layout())
    window: Out(1)
    opens: Out(1)
    control: Out(1, init=1)
    number: Out(FRAME_BITS)

    def __init__(self, *, frame):
        if not isinstance(frame, JobFrame):
            raise ValueError(f"Frame must be a JobFrame, not {frame!r}")
        self._frame = frame
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        frame, slot = self._frame, self.slot
        bits = (frame.cycles - 1).bit_length()
        position, known = Signal(bits + FRAME_BITS), Signal()  # position in the superframe, one cycle after TIME
        now, inside = position[:bits], Signal()
        boundary, index, armed = Signal(bits + 1), Signal(range(JOBS * frame.pairs + 1)), Signal()
        first, last = frame.control
        # Number of slot pairs in all previous superframes, modulo 4.
        number = position[bits:bits + PAIR_BITS]
        before = (0, number, number << 1, -number)[frame.pairs % (1 << PAIR_BITS)]
        m.d.sync += [position.eq(self.now - self.shift), known.eq(self.valid)]
        m.d.comb += [
            inside.eq(now < frame.window),
            slot.soon.eq(known & armed & ~inside & (now >= boundary) & (index != JOBS * frame.pairs)),
        ]
        m.d.sync += [
            self.window.eq(known & inside), self.opens.eq(known & inside & ~self.window),
            self.control.eq(~known | ((now >= first) & (now < last))),
            self.number.eq(position[bits:]), slot.starts.eq(slot.soon),
        ]
        with m.If(slot.soon):
            m.d.sync += [
                slot.drives.eq(index[0] == self.job), slot.passes.eq(index[0] != self.job),
                slot.pair.eq(index[1:] + before),
                boundary.eq(boundary + frame.slot), index.eq(index + 1),
            ]
        with m.Elif(inside | ~known):
            m.d.sync += [slot.drives.eq(0), slot.passes.eq(0), boundary.eq(frame.window), index.eq(0),
                         armed.eq(known)]
        return m
