"""Node extension for throttles."""

from hdl.node_extension import NodeExtension
from hdl.throttle import Throttle

__all__ = ["ThrottlesNode"]


class ThrottlesNode(NodeExtension):
    """Node extension with throttles for the memories and the host port; engines have their own throttles."""

    def make_queue(self, m, units):
        m.submodules.memory_throttle = self._memories = Throttle()
        m.submodules.host_throttle = self._host = Throttle()
        m.d.comb += [self._memories.rate.eq(units.registers.throttle_memory),
                     self._host.rate.eq(units.registers.throttle_host)]

    def memory_options(self, units, space):
        return {"throttled": True}

    def connect_memory(self, m, units, space, memory):
        m.d.comb += memory.enable.eq(self._memories.enable)

    def host_enable(self, m, units):
        return self._host.enable
