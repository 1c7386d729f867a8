"""Extension of the collective engine for tenants."""

from amaranth.lib.wiring import In

from hdl.features.tenants.sources import Cut, Tenant
from hdl.ring.extension import CollectiveExtension

__all__ = ["TenantsExtension"]


class TenantsExtension(CollectiveExtension):
    """Collective extension for a command's tenant, which packets carry and which must be the same at all nodes.

    A command that is ``cut`` waits for the ring for at most :data:`~hdl.ring.control.CUT_TIMEOUT` cycles.
    """

    control = {"cuttable": True}
    inputs = {"tenant": Tenant(), "cut": Cut()}

    def members(self):
        return {"tenant": In(2), "cut": In(1)}

    def connect(self, m, units):
        tenant = units.engine.tenant
        m.d.comb += [
            units.control.cut.eq(units.engine.cut), units.packetizer.header.payload.tenant.eq(tenant),
            units.abort_header.tenant.eq(tenant), units.depacketizer.tenant.eq(tenant),
            *([] if units.words is None else [units.words.tenant.eq(tenant)]),
        ]
