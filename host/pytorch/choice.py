"""Choice between simulated nodes and a ring in software, by the size of a script's first job."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from host.pytorch.jobs import Jobs, Kind, Operations, Options
from host.pytorch.messages import Announce, Request, Save
from host.pytorch.software.record import AnnouncedOperations

__all__ = ["LARGEST", "Choice"]

#: Maximum number of elements for which nodes are simulated by default; simulating a sum of them takes some seconds.
LARGEST = 100_000


class Choice:
    """Operations of a script, on simulated nodes or in software.

    Ranks announce their operations. The first one that opens a job or sums decides: the answer is True for nodes, and
    from then on ranks send vectors.

    Members
    -------
    chosen : Operations
        Operations so far.
    """

    def __init__(self, options: Options, stack: contextlib.ExitStack, announce: Callable[[str], None],
                 say: Callable[[str], None]) -> None:
        self._stack, self._announce, self._say = stack, announce, say
        self._options = {kind: dataclasses.replace(options, transport=kind) for kind in Kind}
        self._decided = False
        self.chosen: Operations = AnnouncedOperations(self._options[Kind.SOFTWARE], say)

    @property
    def kind(self) -> Kind:
        """Kind of the ring, which is that of nodes as long as nothing is decided."""
        return Kind.SOFTWARE if self._decided and isinstance(self.chosen, AnnouncedOperations) else Kind.VERILATED

    def answer(self, requests: Sequence[Request]) -> Any:
        """Record or execute an operation that all ranks request; see :meth:`host.pytorch.jobs.Operations.answer`."""
        first = requests[0]
        if not isinstance(first, Announce) or first.kind != "other":
            self._decide(sum(first.lengths) or first.count if isinstance(first, Announce) else 0)
        if isinstance(first, Announce) and isinstance(self.chosen, Jobs):
            return True
        return self.chosen.answer(requests)

    def save(self, request: Save) -> dict[str, Any]:
        """Return the state of a job."""
        return self.chosen.save(request)

    def _decide(self, elements: int) -> None:
        if self._decided:
            return
        self._decided = True
        if elements <= LARGEST:
            self.chosen = Jobs(self._options[Kind.VERILATED], self._stack, self._announce, self._say)
        else:
            self._say(f"a vector of {elements:,} elements is longer than {LARGEST:,}: the ranks compute its sums in "
                      f"software, with the same bits; --transport verilated simulates the nodes")
