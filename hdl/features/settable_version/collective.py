"""Extension of the collective engine for a settable update counter."""

from amaranth.lib.wiring import In

from hdl.control.register_file import version_layout
from hdl.control.source import Setting
from hdl.ring.extension import CollectiveExtension

__all__ = ["SettableVersionExtension"]


class SettableVersionExtension(CollectiveExtension):
    """Collective extension whose register sets the update counter."""

    control = {"settable": True}
    inputs = {"set_version": Setting("set_version")}

    def members(self):
        return {"set_version": In(version_layout())}

    def connect(self, m, units):
        m.d.comb += units.control.set_version.eq(units.engine.set_version)
