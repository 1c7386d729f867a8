# amaranth: UnusedElaboratable=no
"""The sequencer of a collective: a reset ends whatever it is at (its routes and jobs are tested on whole rings)."""

from amaranth.hdl import Assert, Assume, Module, ResetInserter, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import NodeConfig
from hdl.ring.sequencer import Sequencer
from sim import formal

CONFIG = NodeConfig(lanes=1, segment=32, gradient_words=64, weight_words=64, state_words=32, state_planes=1,
                    nodes_max=3)


class IdleAfterReset(wiring.Component):
    """Claims that a sequencer which was reset in the last cycle is not busy, and offers nothing."""

    def __init__(self):
        self._unit = Sequencer(config=CONFIG)
        super().__init__({"reset": In(1), **{
            name: member for name, member in self._unit.signature.members.items()
            if member.is_port and member.flow is In}})

    def elaborate(self, platform):
        m = Module()
        unit = self._unit
        m.submodules.unit = ResetInserter(self.reset)(unit)
        was_reset = Signal()
        m.d.sync += was_reset.eq(self.reset)
        m.d.comb += Assume(~ResetSignal())
        offered = []
        for name, member in unit.signature.members.items():
            if member.is_port:
                if member.flow is In:
                    m.d.comb += getattr(unit, name).eq(getattr(self, name))
            else:
                assert isinstance(member.signature, stream.Signature), name
                port = getattr(unit, name)
                for one in port if isinstance(port, list) else [port]:
                    assert member.flow is Out
                    ready = Signal(name=f"{name}_ready")
                    m.d.comb += one.ready.eq(ready)
                    offered.append(one.valid)
        assert len(offered) > 10
        for valid in (unit.busy, *offered):
            m.d.comb += Assert(~was_reset | ~valid)
        return m


def test_idle_after_reset():
    """Proof by induction, from every state; the engine resets its sequencer whenever no command runs."""
    formal.prove(IdleAfterReset(), depth=2)
