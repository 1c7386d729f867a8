"""A hostile tenant on a worker with a far memory and three queues, with or without its server.

The server belongs to the owner of the model, who pushes requests on the tenant's behalf and pops their events.
"""

import fractions
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import DESCRIPTOR_WORDS, Opcode, Operation
from hdl.control.tenancy import PRIVILEGED
from hdl.features.compute.feature import Compute
from hdl.features.programs.feature import Programs
from hdl.features.streaming.feature import ServerConfig, ServerMemories, Worker
from hdl.features.tenants.feature import Tenants
from host.driver.command import Command
from tests.tenants.hostile import Twins

Words = npt.NDArray[np.uint32]

_COMMON = {"lanes": 2, "segment": 32, "programs": Programs(depth=8, move_queue=True), "features": (Tenants(),)}
_WORDS = {"gradient": 512, "weight": 512, "state": 256}

#: Nodes as small as possible.
WORKER = NodeConfig(role=Worker(), memories=Memories(planes=0, **_WORDS), masking=False, sparsify=False,
                    compute=Compute(rows=1, activations=512, far=1024), **_COMMON)
SERVER = ServerConfig(memories=ServerMemories(planes=1, far=1024, **_WORDS), **_COMMON)

_MOVES = (Operation.MOVE_OUT, Operation.MOVE_IN)


class MovingTwins(Twins):
    """Twins of a worker, or of a worker and its server. Far memories of both rings have the same speed."""

    room: ClassVar = {"gradients": 256, "weights": 256, "state_0": 128, "activations": 256, "far": 512}

    def _begin(self) -> None:
        choose = self._random
        latency, rate = choose.choice([1, 16, 100]), choose.choice([2, 1, fractions.Fraction(1, 8)])
        for opened in self._opened:
            opened.simulation.set_far_speed(latency=latency, rate=rate)
        super()._begin()

    def _fill(self) -> None:
        inside = {name: self._numbers.standard_normal((self.nodes, space.words)).astype(np.float32).view(np.uint32)
                  for name, space in self.spaces.items()}
        for twin in range(2):
            for node in range(self.nodes):
                for name, (base, size) in self._windows.items():
                    if self._has(node, name):
                        memory = self._memory(twin, node, name)
                        memory[:] = self._numbers.integers(0, 1 << 32, memory.size, dtype=np.uint32)
                        memory[base:base + size] = inside[name][node][:size]

    def _bases(self) -> dict[str, int]:
        """Draw base addresses and a length: mostly inside windows, and otherwise at their limits or beyond."""
        choose, windows = self._random, self._windows
        near, far = windows["activations"][1], windows["far"][1]
        length = choose.choice([choose.randrange(1, 257), choose.randrange(1, 65), near, far, 32])
        fields = {"length": length}
        for name, space in (("gradient_base", "gradients"), ("weight_base", "weights"), ("state_base", "far")):
            room = windows[space][1]
            fields[name] = 32 * choose.choice([0, 0, choose.randrange(17), max(0, room - length) // 32, room // 32])
        return fields

    def _commands(self) -> list[Words]:
        """Draw the words of a command for each node: well-formed, mutated or random."""
        choose, server = self._random, self.nodes - 1
        operation = choose.choice([*_MOVES, *_MOVES, Operation.BROADCAST, Operation.PUSH, Operation.ALL_REDUCE,
                                   Operation.FUSED_UPDATE, Operation.ALL_GATHER, Operation.LAYERS, Operation.QUIESCE])
        fields = self._bases()
        if self.nodes > 1 and operation not in _MOVES:
            fields["state_base"] = 32 * choose.randrange(4)
        self._number = getattr(self, "_number", 0) + 1
        fields |= {"size": self.nodes, "root": server, "collective": self._number % (1 << 15)}
        descriptors, kind = [], choose.random()
        changes = self._fields() if kind < 0.3 else {}
        odd = choose.choice([None, *range(self.nodes)])
        for node in range(self.nodes):
            command = Command(operation=operation, rank=node, tenant=self._attacker, tag=choose.getrandbits(16),
                              **fields)
            if odd in (None, node):
                command = Command(**{**vars(command), **changes})
            words = command.words()
            if kind > 0.93:
                words = self._noise(DESCRIPTOR_WORDS)
                words[0] = words[0] & 0xFFFFFF00 | operation
                words[7] = words[7] & 0xFFFF | self._attacker << 16
            descriptors.append(words)
        return descriptors

    def _aim(self) -> None:
        """Prepare nothing, as these nodes use no lists."""

    def _asks(self, node: int, packet: Words) -> int:
        by_owner = self.configs[node].is_server and int(packet[0]) >> 24 in (Opcode.PUSH_COMMAND, Opcode.POP_EVENT)
        return int(PRIVILEGED) if by_owner else self._attacker
