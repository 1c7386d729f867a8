"""Golden model of nodes that run a program; computes the final contents of their memories.

A seed selects the order in which commands of different queues and nodes run, among those allowed by queues and waits;
a collective runs when all nodes have reached it. A program without races produces the same memory contents in every
order.
"""

from collections.abc import Callable, Sequence

import numpy as np

from sim.golden.features.programs.program import remote_of
from sim.golden.nodes import Nodes, Placed

__all__ = ["ProgramNodes"]


class ProgramNodes(Nodes):
    """Nodes with programs; for the parameters, see :class:`~sim.golden.nodes.Nodes`."""

    def run(self, queues: Sequence[Sequence[Placed]], *, passes: int = 1, seed: int = 0, parity: int = 0,
            before: Callable[[int], None] = lambda number: None) -> None:
        """Run a program in an order chosen by ``seed``; ``parity`` 0 or 1 makes the first pass even or odd.

        ``before`` is called with each pass number before the pass's first command. Raises ValueError if commands wait
        forever.
        """
        generator = np.random.default_rng(seed)
        done = [[0] * len(queues) for _ in range(self.nodes)]
        begun = -1
        while True:
            ready = [(rank, queue) for rank in range(self.nodes) for queue, commands in enumerate(queues)
                     if done[rank][queue] < passes * len(commands) and self._may_start(queues, done, rank, queue)]
            if not ready:
                break
            rank, queue = ready[generator.integers(len(ready))]
            number, position = divmod(done[rank][queue], len(queues[queue]))
            while begun < number:
                begun += 1
                before(begun)
            command = queues[queue][position]
            ranks = list(range(self.nodes)) if command.collective else [rank]
            self.execute(command, ranks, odd=(number + parity) % 2)
            for member in ranks:
                done[member][queue] += 1
        if any(counts != [passes * len(commands) for commands in queues] for counts in done):
            raise ValueError(f"Commands must not wait for ever, not with {done} of them done")

    def _may_start(self, queues: Sequence[Sequence[Placed]], done: list[list[int]], rank: int, queue: int) -> bool:
        """Whether the next command of a queue may start. A collective must be able to start on all nodes."""
        count = done[rank][queue]
        number, position = divmod(count, len(queues[queue]))
        command = queues[queue][position]
        for member in range(self.nodes) if command.collective else [rank]:
            if done[member][queue] != count:
                return False
            rest = [other for other in range(len(queues)) if other != queue]
            for other, (after, lag) in zip(rest, command.waits, strict=False):
                if after and number >= lag and done[member][other] < (number - lag) * len(queues[other]) + after:
                    return False
            remote = remote_of(command.remotes, member)
            if remote is not None and remote.after and number >= remote.lag and done[remote.unit][remote.queue] < (
                    number - remote.lag) * len(queues[remote.queue]) + remote.after:
                return False
        return True
