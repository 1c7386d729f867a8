"""Extension of the collective engine for sums of integers."""

from amaranth.hdl import Mux

from hdl.ring.extension import CollectiveExtension

__all__ = ["ReproducibleExtension", "spare_bits"]


def spare_bits(addends, most):
    """Base-2 logarithm of a number of addends, up to ``most``, rounded up: the bits that a sum needs in addition."""
    spare = 0
    for bits in range((most - 1).bit_length()):
        spare = Mux(addends > 1 << bits, bits + 1, spare)
    return spare


class ReproducibleExtension(CollectiveExtension):
    """Derive the number of bits of addends from the number of nodes when a command is accepted."""

    def take(self, m, units, command):
        """Set the base-2 logarithm of the number of nodes, rounded up."""
        m.d.sync += units.setup.spare.eq(spare_bits(command.size, self._config.topology.max_nodes))
