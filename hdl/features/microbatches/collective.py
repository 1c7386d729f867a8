"""Extension of the collective engine for several addends on each node."""

from amaranth.hdl import Mux
from amaranth.lib.wiring import In

from hdl.control.source import Setting, SettingField
from hdl.features.microbatches.layout import ADDENDS, MAX_ADDENDS
from hdl.features.reproducible.collective import spare_bits
from hdl.ring.extension import CollectiveExtension

__all__ = ["MicrobatchesExtension"]

_STRIDE_BITS = 24


class MicrobatchesExtension(CollectiveExtension):
    """Take the number of addends of the node and of all nodes, and the distance of the addends, from registers."""

    inputs = {"addends": SettingField("MICROBATCHES", "count"), "total": SettingField("MICROBATCHES", "total"),
              "stride": Setting("microbatch_stride")}

    def members(self):
        return {"addends": In(ADDENDS), "total": In(range(MAX_ADDENDS + 1)), "stride": In(_STRIDE_BITS)}

    def take(self, m, units, command):
        """Set the number and distance of addends, and ``spare``: the reproducible feature, which comes earlier in the
        registry, has derived ``spare`` from the number of nodes only."""
        engine, setup = units.engine, units.setup
        m.d.sync += [
            setup.addends.eq(Mux(engine.addends == 0, 1, engine.addends)),
            setup.distance.eq(engine.stride >> (self._config.lanes.bit_length() - 1)),
        ]
        with m.If(engine.total != 0):
            m.d.sync += setup.spare.eq(spare_bits(engine.total, MAX_ADDENDS))
