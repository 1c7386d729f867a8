"""Extension of the collective engine for integer sums."""

from amaranth.hdl import Mux

from hdl.ring.extension import CollectiveExtension

__all__ = ["ReproducibleExtension", "spare_bits"]


def spare_bits(addends, most):
    """Return by how many bits a sum is wider than its addends: log2 of their number, rounded up. There are at most
    ``most`` addends."""
    spare = 0
    for bits in range((most - 1).bit_length()):
        spare = Mux(addends > 1 << bits, bits + 1, spare)
    return spare


class ReproducibleExtension(CollectiveExtension):
    """Collective extension that derives the width of addends from the number of nodes of each accepted command."""

    def take(self, m, units, command):
        """Set ``spare`` of the setup to the base-2 logarithm of the number of nodes, rounded up."""
        m.d.sync += units.setup.spare.eq(spare_bits(command.size, self._config.topology.max_nodes))
