"""Cycles of memory transfers and counter reads at a node's host port.

A node serves one request after the other. Cycles count from the first word of a request, offered to an idle port, up
to the last word of its response.

- A full node requests memory 7 cycles after the first word, since requests pass a register. A write then takes a
  cycle per word, 3 for the words of its response, and 1 for the register of responses: ``count + 11``. The first word
  of a read comes after 5 cycles, and one more for each element of its row below ``address``:
  ``count + address % lanes + 12``.
- An int16 node has no such registers, and reads a word in 3 cycles: ``count + 9`` and ``3 * count + 6``.
- The register file begins a visit of a row every 4 cycles, from reset on, and every other visit is for the host
  while it has a request. The first is the next one 9 cycles after the first word of the request, or 8 in an
  int16 node, and its value comes with the visit's last cycle: see :meth:`PortModel.read_registers`.
"""

from collections.abc import Callable

from hdl.config import Configuration

__all__ = ["PortModel"]


class PortModel:
    """Model of one node's host port for transfers from and to its memories."""

    def __init__(self, config: Configuration) -> None:
        self._lanes, self._pipelined = config.lanes, config.pipelined_port
        self._free = 0

    def read(self, cycle: int, address: int, count: int) -> int:
        """Serve a read of ``count`` elements from ``address`` on, requested from ``cycle`` on.

        Returns
        -------
        int
            Cycle of the last word of the response.
        """
        if not self._pipelined:
            return self._serve(cycle, lambda begun: begun + 3 * count + 6)
        return self._serve(cycle, lambda begun: begun + count + address % self._lanes + 12)

    def write(self, cycle: int, count: int) -> int:
        """Serve a write of ``count`` elements, requested from ``cycle`` on.

        Returns
        -------
        int
            Cycle of the last word of the response.
        """
        return self._serve(cycle, lambda begun: begun + count + (11 if self._pipelined else 9))

    def read_registers(self, cycle: int, count: int) -> int:
        """Serve a read of ``count`` registers, requested from ``cycle`` on.

        Returns
        -------
        int
            Cycle of the last word of the response.
        """
        if not self._pipelined:
            return self._serve(cycle, lambda begun: begun // 4 * 4 + 8 * count + 9)
        return self._serve(cycle, lambda begun: (begun + 1) // 4 * 4 + 8 * count + 10)

    def _serve(self, cycle: int, end_of: Callable[[int], int]) -> int:
        end = end_of(max(cycle, self._free))
        # With registers, the request register holds the next request while the other still holds the response.
        self._free = end + (-1 if self._pipelined else 1)
        return end
