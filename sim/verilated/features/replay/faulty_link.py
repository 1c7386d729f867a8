"""Verilated ends of a replay link with faulty wires, simulated at millions of cycles per second.

Example
-------
::

    outcome = FaultyLink().run(Fault.FLIP, latency=16, faults=1000, seed=1)
    assert outcome["silent"] == outcome["hanging"] == 0
"""

import ctypes
import enum
from pathlib import Path

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hdl.features.replay.receiver import ReplayReceiver
from hdl.features.replay.transmitter import ReplayTransmitter
from sim.verilated import toolchain
from sim.verilated.verilog import convert, with_loops

__all__ = ["Ends", "Fault", "FaultyLink"]

_HERE = Path(__file__).parent


class Fault(enum.IntEnum):
    """Kinds of faults; a single fault occurs 40 to 103 words after the link has repaired the previous one."""

    FLIP = 0
    """A wrong bit on any of the 44 wires in any cycle."""
    START = 1
    """A wrong bit while the link starts."""
    STORM = 2
    """A wrong bit every 1 to 100 cycles."""
    DROP = 3
    """A word that does not arrive."""
    DOUBLE = 4
    """A word that is present for two cycles, and replaces the next one if there is one."""
    SWAP = 5
    """Two words in the wrong order."""
    CUT = 6
    """No words and no line bits for 1 to 200 cycles."""
    NOISE = 7
    """A word of random bits in place of a correct one."""


class Ends(wiring.Component):
    """Both ends of a link with all their ports, without the wires between them.

    Members
    -------
    t : Out(signature of ReplayTransmitter)
    r : Out(signature of ReplayReceiver)
    """

    def __init__(self) -> None:
        self._transmitter = ReplayTransmitter(segments=4, egress_words=268)
        self._receiver = ReplayReceiver(segments=4, packet_words=268)
        super().__init__({"t": Out(self._transmitter.signature), "r": Out(self._receiver.signature)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.transmitter = self._transmitter
        m.submodules.receiver = self._receiver
        wiring.connect(m, wiring.flipped(self.t), self._transmitter)
        wiring.connect(m, wiring.flipped(self.r), self._receiver)
        return m


class _Part(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("latency", ctypes.c_int32), ("stalls", ctypes.c_int32),
                ("faults", ctypes.c_int64), ("seed", ctypes.c_uint64)]


class _Outcome(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in (
        "faults", "cycles", "words", "controls", "restarts", "repeated", "failed", "lost", "most", "measured",
        "escaped", "refused", "invented", "silent", "hanging", "overrun")]


class FaultyLink:
    """Link with faulty wires; packets of random words are sent over it and compared word by word."""

    def __init__(self) -> None:
        design = convert(Ends(), name="replay_ends")
        path = toolchain.shared_library(design.name, with_loops(design.text), harness=[_HERE / "faulty_link.cpp"],
                                        headers={}, level="-O2")
        self.digest = path.parent.name
        self._library = ctypes.CDLL(str(path))
        self._library.replay_run.restype = None

    def run(self, kind: Fault, *, latency: int, faults: int, seed: int, stalls: bool = False) -> dict[str, int]:
        """Run one part of a fault campaign and return its counts.

        Parameters
        ----------
        kind : Fault
        latency : int
            Latency of the wires in cycles; at least 1, or 2 if words are doubled or swapped. With ``stalls``, the
            latency of the return line is drawn from 1 to 64 instead.
        faults : int
            Number of faults.
        seed : int
        stalls : bool
            Whether both sides stall and control words are sent. Without stalls, every cycle without a word counts as
            lost.

        Returns
        -------
        dict
            ``faults``, ``cycles``, ``words``, ``controls``, ``restarts``, ``repeated``, ``failed``; ``lost`` and
            ``most``, cycles lost in total and the most cycles lost to one of the ``measured`` faults; ``escaped``,
            words that arrived corrupted; ``refused`` and ``silent``, packets with such words that the CRC-32 detected
            or missed; ``invented``, control words that arrived corrupted; ``hanging``, links that stopped; and
            ``overrun``, links that were sent packets for which they had no free buffer space.
        """
        outcome = _Outcome()
        self._library.replay_run(ctypes.byref(_Part(int(kind), latency, int(stalls), faults, seed)),
                                 ctypes.byref(outcome))
        return {name: getattr(outcome, name) for name, *_ in _Outcome._fields_}
