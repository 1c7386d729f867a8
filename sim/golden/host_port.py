"""Cycles of transfers between the host and a node's memories at the node's host port.

A node serves one request after the other. Cycles count from the one that offers the first word of a request to an
idle port, up to the last word of its response.

- A full node requests memory 7 cycles after the first word, since requests pass a register. A write then takes a
  cycle per word, 3 for the words of its response, and 1 for the register of responses: ``count + 11``. The first word
  of a read comes after 5 cycles, and one more for each element of its row below ``address``:
  ``count + address % lanes + 12``.
- A reduced node has no such registers, and reads a word in 3 cycles: ``count + 9`` and ``3 * count + 6``.
"""

from hdl.config import NodeConfig

__all__ = ["PortModel"]


class PortModel:
    """Model of one node's host port for transfers from and to its memories.

    Parameters
    ----------
    config : NodeConfig
    """

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._free = 0

    def read(self, cycle: int, address: int, count: int) -> int:
        """Serve a read of ``count`` elements from ``address`` on, whose request is there from ``cycle`` on.

        Returns
        -------
        int
            The cycle in which the last word of its response is given.
        """
        if self._config.reduced:
            return self._serve(cycle, 3 * count + 6)
        return self._serve(cycle, count + address % self._config.lanes + 12)

    def write(self, cycle: int, count: int) -> int:
        """Serve a write of ``count`` elements, whose request is there from ``cycle`` on.

        Returns
        -------
        int
            The cycle in which the last word of its response is given.
        """
        return self._serve(cycle, count + (9 if self._config.reduced else 11))

    def _serve(self, cycle: int, cycles: int) -> int:
        end = max(cycle, self._free) + cycles
        # With registers the next request is in one of them already, and the response still in the other.
        self._free = end + (1 if self._config.reduced else -1)
        return end
