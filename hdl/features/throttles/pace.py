"""Rate limit and extra delay of the links in a node with throttles."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.ring.link_ends import Pace
from hdl.ring.ports import link_signature
from hdl.ring.wire_delay import DELAY_BITS, WireDelay
from hdl.throttle import RATE_BITS, Throttle

__all__ = ["ThrottledPace"]


class ThrottledPace(Pace):
    """Pace of a link, which limits the rate of words and delays them.

    The link ends have ``throttle``, in words per 65,536 cycles, and ``wire_delay``, the number of extra cycles for
    each word (:class:`~hdl.ring.wire_delay.WireDelay`).

    Parameters
    ----------
    config : Configuration
    """

    throttled = True

    def __init__(self, config):
        self._config = config

    def members(self):
        return {"throttle": In(RATE_BITS), "wire_delay": In(DELAY_BITS)}

    def connect(self, m, links, transmitter):
        m.submodules.throttle = throttle = Throttle()
        m.submodules.wires = wires = WireDelay(signature=link_signature(self._config))
        wiring.connect(m, transmitter=transmitter.ring_o, wires=wires.i)
        m.d.comb += [throttle.rate.eq(links.throttle), transmitter.enable.eq(throttle.enable),
                     wires.delay.eq(links.wire_delay)]
        return wires.o
