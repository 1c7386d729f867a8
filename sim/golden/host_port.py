"""Cycle counts of memory transfers and counter reads at a node's host port.

A node serves one request after another. Cycles are counted from the first word of a request, offered to an idle port,
to the last word of its response.

- A full node requests memory 7 cycles after the first word, since requests pass through a register. A write then
  takes one cycle per word, 3 cycles for the words of its response, and 1 cycle for the response register:
  ``count + 11``. The first word of a read follows after 5 cycles, plus one for each element of its row below
  ``address``: ``count + address % lanes + 12``.
- An int16 node has no such registers, and reads a word in 3 cycles: ``count + 9`` (write), ``3 * count + 6`` (read).
- The register file visits a row every 4 cycles, counted from reset. While the host has a request, every second visit
  serves the host. The first of these visits begins at least 9 cycles after the first word of the request, or 8 cycles
  in an int16 node. A visit returns its value in its last cycle: see :meth:`PortModel.read_registers`.
"""

from collections.abc import Callable

from hdl.config import Configuration

__all__ = ["PortModel"]


class PortModel:
    """Model of how many cycles a node's host port takes to access the node's memories."""

    def __init__(self, config: Configuration) -> None:
        self._lanes, self._pipelined = config.lanes, config.pipelined_port
        self._free = 0

    def read(self, cycle: int, address: int, count: int) -> int:
        """Serve a read of ``count`` elements starting at ``address``, requested from ``cycle`` onwards.

        Returns
        -------
        int
            Cycle of the response's last word.
        """
        if not self._pipelined:
            return self._serve(cycle, lambda begun: begun + 3 * count + 6)
        return self._serve(cycle, lambda begun: begun + count + address % self._lanes + 12)

    def write(self, cycle: int, count: int) -> int:
        """Serve a write of ``count`` elements, requested from ``cycle`` onwards.

        Returns
        -------
        int
            Cycle of the response's last word.
        """
        return self._serve(cycle, lambda begun: begun + count + (11 if self._pipelined else 9))

    def read_registers(self, cycle: int, count: int) -> int:
        """Serve a read of ``count`` registers, requested from ``cycle`` onwards.

        Returns
        -------
        int
            Cycle of the response's last word.
        """
        if not self._pipelined:
            return self._serve(cycle, lambda begun: begun // 4 * 4 + 8 * count + 9)
        return self._serve(cycle, lambda begun: (begun + 1) // 4 * 4 + 8 * count + 10)

    def _serve(self, cycle: int, end_of: Callable[[int], int]) -> int:
        end = end_of(max(cycle, self._free))
        # With registers, the request register can accept the next request while the response register is full.
        self._free = end + (-1 if self._pipelined else 1)
        return end
