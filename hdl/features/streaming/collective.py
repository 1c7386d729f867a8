"""Extension of the collective engine for formats of BROADCAST."""

from amaranth.hdl import Mux

from hdl.control.protocol import Operation
from hdl.features.streaming.tally import ENTRIES
from hdl.ring.extension import CollectiveExtension

__all__ = ["StreamingExtension"]


class StreamingExtension(CollectiveExtension):
    """Collective extension that sets the format of a BROADCAST and, on servers, the table entry in which a command's
    counts are stored."""

    def take(self, m, units, command):
        if not self._config.role.broadcast_formats:
            return
        setup, fetches = units.setup, command.operation == Operation.BROADCAST
        m.d.sync += setup.format.eq(Mux(fetches, command.format, 0))
        if self._config.is_server:
            encodes = fetches & (command.rank == command.root) & (command.size != 1)
            m.d.sync += [
                setup.counted.eq((units.chained | encodes) & (command.entry < ENTRIES)),
                setup.entry.eq(command.entry),
                setup.length.eq(command.length),
            ]
