"""Cycles of transfers between the host and a node's memories, and of reads of counters, at the node's host port.

A node serves one request after the other. Cycles count from the one that offers the first word of a request to an
idle port, up to the last word of its response.

- A full node requests memory 7 cycles after the first word, since requests pass a register. A write then takes a
  cycle per word, 3 for the words of its response, and 1 for the register of responses: ``count + 11``. The first word
  of a read comes after 5 cycles, and one more for each element of its row below ``address``:
  ``count + address % lanes + 12``.
- An int16 node has no such registers, and reads a word in 3 cycles: ``count + 9`` and ``3 * count + 6``.
- The register file begins a visit of a row every 4 cycles, from reset on, and every other one of them is for the host
  while it asks for something. The first is the next one 9 cycles after the first word of the request, or 8 in an
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
        """Serve a read of ``count`` elements from ``address`` on, whose request is there from ``cycle`` on.

        Returns
        -------
        int
            The cycle in which the last word of its response is given.
        """
        if not self._pipelined:
            return self._serve(cycle, lambda begun: begun + 3 * count + 6)
        return self._serve(cycle, lambda begun: begun + count + address % self._lanes + 12)

    def write(self, cycle: int, count: int) -> int:
        """Serve a write of ``count`` elements, whose request is there from ``cycle`` on.

        Returns
        -------
        int
            The cycle in which the last word of its response is given.
        """
        return self._serve(cycle, lambda begun: begun + count + (11 if self._pipelined else 9))

    def read_registers(self, cycle: int, count: int) -> int:
        """Serve a read of ``count`` registers, whose request is there from ``cycle`` on.

        Returns
        -------
        int
            The cycle in which the last word of its response is given.
        """
        if not self._pipelined:
            return self._serve(cycle, lambda begun: begun // 4 * 4 + 8 * count + 9)
        return self._serve(cycle, lambda begun: (begun + 1) // 4 * 4 + 8 * count + 10)

    def _serve(self, cycle: int, end_of: Callable[[int], int]) -> int:
        end = end_of(max(cycle, self._free))
        # With registers the next request is in one of them already, and the response still in the other.
        self._free = end + (-1 if self._pipelined else 1)
        return end
