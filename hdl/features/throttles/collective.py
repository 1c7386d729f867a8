"""Extension of the collective engine for throttles."""

from amaranth.lib.wiring import In

from hdl.control.source import Setting, SettingField
from hdl.ring.extension import CollectiveExtension
from hdl.ring.wire_delay import DELAY_BITS
from hdl.throttle import RATE_BITS

__all__ = ["ThrottlesExtension"]


class ThrottlesExtension(CollectiveExtension):
    """Collective extension for the rates of the optimizer (fixed during a command) and links, and the link
    delay."""

    inputs = {"throttle_optimizer": SettingField("THROTTLE_COMPUTE", "optimizer"),
              "throttle_link": Setting("throttle_link"), "wire_delay": Setting("delay_link")}

    def members(self):
        return {"throttle_optimizer": In(RATE_BITS), "throttle_link": In(RATE_BITS), "wire_delay": In(DELAY_BITS)}

    def take(self, m, units, command):
        m.d.sync += units.setup.pace.eq(units.engine.throttle_optimizer)

    def connect(self, m, units):
        m.d.comb += [units.link.throttle.eq(units.engine.throttle_link),
                     units.link.wire_delay.eq(units.engine.wire_delay)]
