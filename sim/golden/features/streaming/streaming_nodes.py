"""Golden model of layer-streaming nodes that run a program: workers, and a server with the last rank.

FETCH is a BROADCAST with the server as root, in the format that its command specifies. PUSH does not read the root's
gradients: the root updates its weights and state with the sum of the other nodes' gradients, in the order of their
ranks after the root. Both operations use separate addresses on each node. The server does not compute or move
activations, so these commands take no time there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden import optimizer
from sim.golden.codecs import CODECS
from sim.golden.features.programs.program_nodes import ProgramNodes
from sim.golden.features.streaming.streaming import Counts, counts, push_sum
from sim.golden.nodes import Collected, Placed

__all__ = ["FORMATS", "StreamingNodes"]

Bits = npt.NDArray[np.uint32]

#: Formats of FETCH, indexed by their numbers in commands.
FORMATS = ("raw", "mx4", "mx6", "mx9")


class StreamingNodes(ProgramNodes):
    """Memories of the workers and of the server, which has the last rank. The server holds the master weights of all
    units, from element 0 on, and their state planes, initially zero. Options are as in :class:`ProgramNodes`."""

    def __init__(self, workers: int, *, weights: Bits, planes: int = 2, **options: Any):
        super().__init__(workers + 1, weights=np.zeros_like(weights), planes=0, **options)
        self.server = workers
        #: Element counts from the latest BROADCAST and PUSH of each entry in the server's table.
        self.counts: dict[tuple[str, int], Counts] = {}
        self.weights[self.server] = weights
        self.state = [np.zeros_like(self.weights) for _ in range(planes)]

    def execute(self, command: Placed, ranks: Sequence[int], *, odd: int = 0) -> list[Collected]:
        fields = [{"gradient_base": 0, "weight_base": 0, "state_base": 0, "length": 0, "root": 0,
                   "format": 0, "entry": 0, **entry}
                  for entry in command.fields]
        if command.operation in ("BROADCAST", "PUSH"):
            self._from_root(command.operation, fields)
            return []
        local = command.operation in ("LAYERS", "MOVE_OUT", "MOVE_IN")
        return super().execute(command, [rank for rank in ranks if rank != self.server] if local else ranks, odd=odd)

    def _from_root(self, operation: str, fields: Sequence[dict[str, int]]) -> None:
        root = fields[0]["root"]
        followers = [(root + 1 + number) % self.nodes for number in range(self.nodes - 1)]

        def place(rank: int, base: str) -> slice:
            return slice(fields[rank][base], fields[rank][base] + fields[rank]["length"])

        served = place(root, "weight_base")
        if operation == "BROADCAST":
            formats = {item["format"] for item in fields}
            if len(formats) > 1:
                raise ValueError(f"Format of a BROADCAST must be one on all nodes, not {sorted(formats)}")
            name, = (FORMATS[item] for item in formats)
            codec, local = CODECS[name], self.weights[root, served]
            self.counts[operation, fields[root]["entry"]] = counts(local, name)
            decoded = codec.decode(codec.encode(local), len(local))
            for rank in followers:
                self.weights[rank, place(rank, "weight_base")] = decoded
            return
        if self._latched is None:
            raise ValueError("Settings must be latched before an update")
        total = push_sum(np.stack([self.gradients[rank, place(rank, "gradient_base")] for rank in followers]))
        self.counts[operation, fields[root]["entry"]] = counts(total)
        state = place(root, "state_base")
        self.weights[root, served], planes = optimizer.update(
            total, self.weights[root, served], [plane[root, state] for plane in self.state], self._latched[0])
        for plane, new in zip(self.state, planes, strict=True):
            plane[root, state] = new
