"""A hostile tenant on nodes with control words and quorum updates: remote waits, and arbitrary gradient slots."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import DESCRIPTOR_WORDS, EVENT_WORDS, RUN_WORDS, Opcode, Operation, Space
from hdl.control.registers import register
from hdl.control.tenancy import windowed
from host.driver.command import Command
from tests.host.rings import CONFIGS
from tests.tenants.hostile import Twins

Words = npt.NDArray[np.uint32]

_PATIENCE = 3_000


class QuorumTwins(Twins):
    """Twins of nodes with the configuration ``wide`` of :mod:`tests.host.rings`."""

    config = CONFIGS["wide"]
    room: ClassVar = {"gradients": 1024, "weights": 512, "state_0": 256, "masters": 256, "scales": 512}

    lists: ClassVar = [("gradients", 0, 1024), ("scales", 0, 512)]

    def _contents(self) -> list[Words]:
        return [self._numbers.standard_normal((self.nodes, space.words)).astype(np.float32).view(np.uint32)
                for space in windowed(self.config)]

    def _fields(self) -> dict[str, int]:
        fields = super()._fields()
        return {name: value for name, value in fields.items() if name != "root_reduce"}

    def _commands(self) -> list[Words]:
        """Draw the words of a command for each node: well-formed, but with any values in the fields."""
        choose = self._random
        fields = {
            "operation": choose.choice([Operation.QUIESCE, Operation.COMPUTE, Operation.APPLY_LATE,
                                        Operation.FUSED_UPDATE,
                                        Operation.ALL_REDUCE, Operation.BROADCAST, Operation.ALL_GATHER]),
            "length": choose.choice([40, 100, 300]), "gradient_base": 32 * choose.randrange(24),
            "weight_base": 32 * choose.randrange(12), "state_base": 32 * choose.randrange(6),
            "duration": choose.randrange(200), "collective": choose.getrandbits(16), "round": choose.randrange(2),
            "number": choose.randrange(3), "after_0": choose.randrange(3), "after_1": choose.randrange(3),
            "remote": choose.randrange(2), "unit_queue": choose.randrange(2), "tenant": self._attacker}
        if choose.random() < 0.3:
            fields |= self._fields()
        fields = {"size": self.nodes, **fields}
        return [Command(**{"rank": node, "unit": (node + 1) % self.nodes, **fields}).words()
                for node in range(self.nodes)]

    def _write(self, name: str, value: int) -> list[Words]:
        return [self._packet(Opcode.WRITE_REGISTER, 1, register(name).address, value)] * self.nodes

    def _aim(self) -> None:
        """Prepare quorum updates with any addresses of slots and scales, or a program with remote waits."""
        choose, nodes = self._random, range(self.nodes)
        length, number = choose.choice([40, 100]), choose.randrange(1, 64)
        common = {"tenant": self._attacker, "size": self.nodes, "length": length}
        base = 32 * choose.randrange(16)
        passes = choose.randrange(1, 4)
        if choose.random() < 0.6:
            queues = [
                [{"operation": Operation.COMPUTE, "round": 1, "gradient_base": base, "state_base": 32,
                  "duration": choose.randrange(300)}],
                [{"operation": Operation.APPLY_LATE, "round": 1, "gradient_base": base},
                 {"operation": Operation.FUSED_UPDATE, "round": 1, "gradient_base": base,
                  "after_0": choose.randrange(2), "collective": choose.getrandbits(15)}]]
        else:
            queues = [[{"operation": Operation.COMPUTE, "duration": choose.randrange(200), "length": 0}],
                      [{"operation": Operation.QUIESCE, "remote": 1, "after_1": choose.randrange(3)}]]
        settings = {"GRADIENT_STRIDE": choose.choice([128, 128, 32 * choose.randrange(128), choose.getrandbits(32)]),
                    "QUORUM": choose.randrange(self.nodes + 1), "DEADLINE": choose.choice([0, 200]),
                    "STALE_WEIGHTS_0": choose.getrandbits(25)}
        self._prepared = [
            *(self._write(name, value) for name, value in settings.items()),
            *([self._packet(Opcode.LOAD_PROGRAM, DESCRIPTOR_WORDS * len(commands), queue << 16, *(
                Command(**{"rank": node, "unit": (node + 1) % self.nodes, **common, **fields}).words()
                for fields in commands)) for node in nodes] for queue, commands in enumerate(queues)),
            [self._packet(Opcode.RUN, RUN_WORDS, passes | number << 25, 1 << 16, node | self.nodes << 4)
             for node in nodes],
            *[[self._packet(Opcode.POP_EVENT, EVENT_WORDS, _PATIENCE)] * self.nodes] * (3 * passes),
            [self._packet(Opcode.READ_MEMORY, length, Space.GRADIENT << 28 | base)] * self.nodes]
