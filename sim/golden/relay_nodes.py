"""Golden model of nodes of a relay that run a program: workers, and behind them in the ring their server.

FETCH is a BROADCAST whose root is the server. Of PUSH the root reads no gradients: it updates its weights and state
by the sum of those of the others, in the order of their ranks behind it. Nodes have addresses of their own in both.
The server computes nothing and moves nothing: it does such commands of a program in no time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden import optimizer
from sim.golden.codecs import CODECS, RAW, Codec
from sim.golden.program_nodes import Nodes, Placed
from sim.golden.relay import push_sum

__all__ = ["RelayNodes"]

Bits = npt.NDArray[np.uint32]


class RelayNodes(Nodes):
    """Memories of workers and of a server, which has the last rank.

    Parameters
    ----------
    workers : int
    weights : array of uint32
        Masters of all units, which the server has from element 0 on.
    planes : int
        State planes of the server, which are zeros at first.
    codec : Codec
        Codec of weights in FETCH.
    options
        As those of :class:`Nodes`.
    """

    def __init__(self, workers: int, *, weights: Bits, planes: int = 2, codec: Codec = CODECS[RAW], **options: Any):
        super().__init__(workers + 1, weights=np.zeros_like(weights), planes=0, **options)
        self.server = workers
        self._codec = codec
        self.weights[self.server] = weights
        self.state = [np.zeros_like(self.weights) for _ in range(planes)]

    def execute(self, command: Placed, ranks: Sequence[int], *, odd: int = 0) -> None:
        fields = [{"gradient_base": 0, "weight_base": 0, "state_base": 0, "length": 0, "root": 0, **one}
                  for one in command.fields]
        if command.operation in ("BROADCAST", "PUSH"):
            self._from_root(command.operation, fields)
            return
        local = command.operation in ("LAYERS", "MOVE_OUT", "MOVE_IN")
        super().execute(command, [rank for rank in ranks if rank != self.server] if local else ranks, odd=odd)

    def _from_root(self, operation: str, fields: Sequence[dict[str, int]]) -> None:
        root = fields[0]["root"]
        behind = [(root + 1 + number) % self.nodes for number in range(self.nodes - 1)]

        def place(rank: int, base: str) -> slice:
            return slice(fields[rank][base], fields[rank][base] + fields[rank]["length"])

        served = place(root, "weight_base")
        if operation == "BROADCAST":
            given = self._codec.decode(self._codec.encode(self.weights[root, served]), fields[root]["length"])
            for rank in behind:
                self.weights[rank, place(rank, "weight_base")] = given
            return
        if self._latched is None:
            raise ValueError("Settings must be latched before an update")
        total = push_sum(np.stack([self.gradients[rank, place(rank, "gradient_base")] for rank in behind]))
        state = place(root, "state_base")
        self.weights[root, served], planes = optimizer.update(
            total, self.weights[root, served], [plane[root, state] for plane in self.state], self._latched)
        for plane, new in zip(self.state, planes, strict=True):
            plane[root, state] = new
