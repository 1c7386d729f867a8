"""Switch between the ports of a node and its link ends.

Each output port is disabled, or driven by the node or by an input port. This makes it possible to leave nodes out of
a ring, and to let rings bypass nodes. Settings may change only while no word is moving.
"""

import functools
import operator

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.topology import MAX_PORTS, Source

__all__ = ["LinkSwitch", "switch_layout"]


def switch_layout():
    """Switch setting: the :class:`~hdl.ring.topology.Source` of each output port, and whether the node listens to
    each input port."""
    return data.StructLayout({"sources": data.ArrayLayout(2, MAX_PORTS), "listens": MAX_PORTS})


class LinkSwitch(wiring.Component):
    """Route link wires to and from the ports of a node.

    All wires of ``ring_o`` and the return wires of ``ring_i`` are registered. Latency is :attr:`latency` cycles for
    words, from port to port (bypass) and from the transmitter to a port, and for return wires, from port to port and
    from a receiver to a port. All other wires reach the receivers and the transmitter without delay.

    Wires other than ``valid`` change only with a word. Wires of a port that is off and return wires of a port without
    a listener do not change; a port without a listener drops arriving words.

    An input port can serve either a bypass to one port or a receiver. If a setting uses it more than once, it serves
    only the bypass to the lower port. Settings must change only while no word is moving at any port.

    Parameters
    ----------
    signature : Signature
        Wires of a link as seen by the transmitter, including ``valid``:
        :class:`~hdl.ring.link.LinkSignature` or a different one.

    Members
    -------
    ring_i : In(signature).array(2)
    ring_o : Out(signature).array(2)
    receivers : Out(signature).array(2)
        Wires to the receiver of each port.
    transmitter : In(signature)
        Wires from the transmitter.
    port : In(1)
        Output port of the transmitter. If the port has another source, the transmitter's words are dropped.
    setting : In(switch_layout())
    still : Out(1)
        There is no word at any port in this cycle, and there was none in the previous cycle.
    """

    latency = 1

    def __init__(self, *, signature):
        if not isinstance(signature, wiring.Signature):
            raise TypeError(f"Signature must be a Signature, not {signature!r}")
        if "valid" not in signature.members or signature.members["valid"].flow != Out:
            raise ValueError(f"Signature must have a wire valid that leads out, not {signature!r}")
        self._signature = signature
        super().__init__({
            "ring_i": In(signature).array(MAX_PORTS),
            "ring_o": Out(signature).array(MAX_PORTS),
            "receivers": Out(signature).array(MAX_PORTS),
            "transmitter": In(signature),
            "port": In(1),
            "setting": In(switch_layout()),
            "still": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        ports = range(MAX_PORTS)
        forward = [name for name, member in self._signature.members.items() if member.flow == Out]
        back = [name for name, member in self._signature.members.items() if member.flow == In]
        bypass = (Source.BYPASS_0, Source.BYPASS_1)

        def leads(source, sink):
            """Whether any output port is driven by an input port, so that words bypass the node."""
            return self.setting.sources[sink] == bypass[source]

        def sends(sink):
            """Whether the transmitter sends on a port."""
            return (self.setting.sources[sink] == Source.ENGINE) & (self.port == sink)

        for sink in ports:
            out = self.ring_o[sink]
            valid = Signal(name=f"valid_{sink}")
            ways = [(self.transmitter, sends(sink)),
                    *((self.ring_i[source], leads(source, sink)) for source in ports)]
            m.d.comb += valid.eq(Cat(way.valid & chosen for way, chosen in ways).any())
            with m.If(valid):
                for name in forward:
                    if name != "valid":
                        # At most one source is selected.
                        wires = [(getattr(way, name), chosen) for way, chosen in ways]
                        m.d.sync += getattr(out, name).eq(functools.reduce(
                            operator.or_, (value & chosen.replicate(len(value)) for value, chosen in wires)))
            m.d.sync += out.valid.eq(valid)

        for source in ports:
            into, receiver = self.ring_i[source], self.receivers[source]
            passed = [leads(source, sink) for sink in ports]
            listens = self.setting.listens[source] & ~Cat(passed).any()
            m.d.comb += [getattr(receiver, name).eq(getattr(into, name)) for name in forward if name != "valid"]
            m.d.comb += receiver.valid.eq(into.valid & listens)
            for name in back:
                value = Mux(listens, getattr(receiver, name), 0)
                for sink in reversed(ports):
                    value = Mux(passed[sink], getattr(self.ring_o[sink], name), value)
                m.d.sync += getattr(into, name).eq(value)

        for sink in ports:
            with m.If(sends(sink)):
                m.d.comb += [getattr(self.transmitter, name).eq(getattr(self.ring_o[sink], name)) for name in back]
        m.d.comb += self.still.eq(~Cat(self.ring_i[port].valid | self.ring_o[port].valid for port in ports).any())
        return m
