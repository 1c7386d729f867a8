"""A ring of golden models that compute: tests of training on nodes need no gateware."""


import numpy as np

from hdl.compute.layer_list import MULTIPLIED_BIT, Place
from hdl.config import Compute, NodeConfig, Programs
from hdl.control.protocol import EventStatus, Operation
from host.driver.results import ListsOutcome, Outcome, Passes
from host.driver.trace import TraceRecord
from sim.golden import ring as golden
from sim.golden.compute import Engine
from sim.golden.row_owners import RowOwners
from tests.host.training.golden_ring import GoldenRing

#: Cycles of a list, and of everything else.
CYCLES = 100


class EngineRing(GoldenRing):
    """A ring whose nodes have a golden engine. Its memories hold NaN where nothing was written."""
    compute = property(lambda self: self)

    def __init__(self, nodes, *, words=8192, broken=lambda ring: None, centroids=0, sequences=False,
                 **options):
        super().__init__(nodes, **options)
        self.config = NodeConfig(programs=Programs(), compute=Compute(
            rows=4, activations=words, codebook=centroids, scale_mask=sequences, sequences=sequences))
        self.activations = np.full((nodes, words), 0x7FC0_0001, np.uint32)
        self.owners = [RowOwners(words // self.lanes) for _ in range(nodes)]
        self.engine = Engine(rows=4, lanes=self.lanes, centroids=centroids, scale_mask=sequences,
                             sequences=sequences)
        self.lists = self.loads = 0
        self.broken = broken
        self.written = {"gradients": 0, "activations": 0}

    def require(self, allocation):
        super().require(allocation)
        self.gradients = np.full((self.nodes, allocation.length), 0x7FC0_0001, np.uint32)

    def write_gradients(self, gradients):
        super().write_gradients(gradients)
        self.written["gradients"] += sum(map(len, gradients))

    def write_activations(self, vectors, base):
        assert base % 32 == 0
        assert len(vectors) == self.nodes
        for memory, vector, owners in zip(self.activations, vectors, self.owners, strict=True):
            assert vector.dtype == np.uint32
            memory[base:base + len(vector)] = vector
            owners.write(np.arange(base, base + len(vector)) // self.lanes)
            self.written["activations"] += len(vector)

    def write_lists(self, programs, plan):
        for program in programs:
            program.check(plan, self.engine)
        for program in programs:
            self.write_activations([program.words] * self.nodes, program.base)

    def read_activations(self, base, length):
        return self.activations[:, base:base + length].copy().view(np.float32)

    def _compute(self, rank, base, length, offset=0):
        memories = {Place.GRADIENTS: self.gradients[rank], Place.WEIGHTS: self.weights[rank],
                    Place.ACTIVATIONS: self.activations[rank]}
        outcome = self.engine.run(memories, base=base, length=length, offset=offset, owners=self.owners[rank])
        assert outcome.status is EventStatus.OK, outcome
        self.lists += 1
        self.broken(self)
        return outcome.detail >> MULTIPLIED_BIT

    def run_layers(self, lists, lengths, *, offset=0, patience=0):
        return [ListsOutcome(cycles=CYCLES, multiplied=sum(
            self._compute(rank, base, length, offset) for rank, length in enumerate(lengths) if length))
                for base in lists]

    def load(self, programs, *, changes=False):
        self.loaded = programs
        self.loads += 1

    def run(self, *, collectives):
        """Run a program without schedule, a fused update, or of schedule none: what computes, on every node, and then
        a fused update."""
        traces, names = [], []
        for rank, (first, second) in enumerate(self.loaded):
            for command in first:
                assert command.operation is Operation.LAYERS
                self._compute(rank, command.weight_base, command.length)
            names = [command.operation.name for command in second]
            tags = [(queue, command.tag) for queue, commands in enumerate((first, second)) for command in commands]
            traces.append([TraceRecord(queue, tag, end, CYCLES * (number + end))
                           for number, (queue, tag) in enumerate(tags) for end in (False, True)])
        assert names in (["FUSED_UPDATE"], ["LATCH", "FUSED_UPDATE"])
        assert collectives == 1
        return Passes(events=[], traces=traces, outcome=self.fused_update(second[-1].length))

    def read(self):
        return [{**one, "GEMM_CYCLES": 10 * self.lists, "VECTOR_CYCLES": self.lists} for one in super().read()]

    def bits(self):
        return golden.bits(self.master)


class FarRing(EngineRing):
    """A ring whose nodes have three queues and a far memory, too.

    Commands of a program follow each other in an order that a seed chooses among those that waits allow.

    Members
    -------
    moved, runs : int
        Words that all nodes have moved, and programs that they have run.
    """

    def __init__(self, nodes, *, words=8192, far_words=8192, seed=0, **options):
        super().__init__(nodes, words=words, sequences=True, **options)
        self.config = self.config.replace(programs=Programs(move_queue=True), compute={"far": far_words})
        self.far = np.full((nodes, far_words), 0x7FC0_0003, np.uint32)
        self.generator = np.random.default_rng(seed)
        self.moved = self.runs = 0

    def run(self, *, collectives):
        if collectives:
            return super().run(collectives=collectives)
        self.runs += 1
        for rank, queues in enumerate(self.loaded):
            done = [0] * len(queues)
            while ready := [queue for queue in range(len(queues)) if self._may_start(queues, done, queue)]:
                queue = self.generator.choice(ready)
                self._carry_out(rank, queues[queue][done[queue]])
                done[queue] += 1
            assert done == [len(queue) for queue in queues]
        return Passes(events=[], traces=[], outcome=Outcome(cycles=CYCLES * sum(map(len, queues))))

    def _may_start(self, queues, done, queue):
        if done[queue] == len(queues[queue]):
            return False
        command = queues[queue][done[queue]]
        others = [other for other in range(len(queues)) if other != queue]
        return all(done[other] >= after for other, after in zip(others, (command.after_0, command.after_1),
                                                                strict=True))

    def _carry_out(self, rank, command):
        near, far = (slice(base, base + command.length) for base in (command.weight_base, command.state_base))
        if command.operation is Operation.LAYERS:
            self._compute(rank, command.weight_base, command.length, command.state_base)
            return
        self.moved += command.length
        if command.operation is Operation.MOVE_OUT:
            self.far[rank, far] = self.activations[rank, near]
        else:
            self.activations[rank, near] = self.far[rank, far]
            self.owners[rank].write(np.arange(near.start, near.stop) // self.lanes)
