"""Extension of the collective engine for sums of integers."""

from amaranth.hdl import Mux

from hdl.ring.extension import CollectiveExtension

__all__ = ["ReproducibleExtension"]


class ReproducibleExtension(CollectiveExtension):
    """Derive the number of bits of addends from the number of nodes when a command is accepted."""

    def take(self, m, units, command):
        """Set the base-2 logarithm of the number of nodes, rounded up."""
        spare = 0
        for bits in range((self._config.topology.max_nodes - 1).bit_length()):
            spare = Mux(command.size > 1 << bits, bits + 1, spare)
        m.d.sync += units.setup.spare.eq(spare)
