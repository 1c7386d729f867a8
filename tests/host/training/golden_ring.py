"""A ring of golden models in place of nodes: tests of the trainer need no gateware."""

import dataclasses

import numpy as np

from hdl.control.protocol import Operation
from hdl.control.registers import COUNTERS
from hdl.ring.topology import RingTopology
from host.driver.optimizer_settings import Settings
from host.driver.results import MaskOutcome, Outcome, Passes, SparsifyOutcome
from host.models.transformer import TransformerConfig
from host.training.batches import Batches
from host.training.optimizers import Adam
from host.training.record import TrainingConfig
from sim.golden import masking
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS

SMALL = TransformerConfig(width=8, heads=2, hidden=6, context=8)
TEXT = TrainingConfig(batch=30, max_steps=5, interval=2, optimizer=Adam(learning_rate=0.03))


def masked(jobs, alternative):
    """Masked matrices of each node's jobs, and how many elements of each node are replaced."""
    instead = golden.bits([alternative])[0]
    results, replaced = [], []
    for mine in jobs:
        kept = [masking.kept(masking.Job(rows=job.rows, columns=job.columns, count=job.count,
                                         mask=masking.Mask(**vars(job.mask)))) for job in mine]
        results.append([golden.floats(masking.apply(golden.bits(job.matrices), keep, instead))
                        for job, keep in zip(mine, kept, strict=True)])
        replaced.append(sum(int((~keep).sum()) for keep in kept))
    return results, replaced


class GoldenRing:
    """A ring whose nodes are golden models, faults apart. No gateware is needed to test the trainer.

    It is each of its own parts, which have no names in common.
    """
    segment = 256
    lanes = 4
    int16 = False
    formats = memory = partition = settings = counters = commands = collectives = local = programs = property(
        lambda self: self)

    def __init__(self, nodes, *, fault=lambda ring: None, mask_fault=lambda ring, results: None, weight_codec="raw",
                 gradient_codec="zero_value"):
        self.nodes = nodes
        self.root = None  # each rank owns a block
        self.weight_codec = weight_codec
        self.has_master = weight_codec != "raw"
        self.codec = WEIGHT_CODECS[weight_codec]
        self.gradient_codec = gradient_codec
        self.sums = GRADIENT_CODECS[gradient_codec]
        self.has_residual = not self.sums.exact
        self.codebooks = []
        self.fault = fault
        self.mask_fault = mask_fault
        self.alternatives = []
        self.steps = 0
        self.reads = 0

    def owner(self, element, length):
        block = next(n for n, block in enumerate(golden.block_indices(length, self.nodes)) if element in block)
        return RingTopology(self.nodes).owner(block)

    @property
    def known(self):
        return dataclasses.asdict(self.optimizer)

    def restore(self, settings):
        self.optimizer = Settings(**settings)

    def recover(self):
        pass

    def write_weights(self, weights):
        self.weights = np.tile(weights, (self.nodes, 1))
        self.master = weights.copy()

    def write_master(self, weights):
        self.master = weights.copy()

    def write_state(self, state, plane, *, packed_state):
        assert packed_state == self.packed_state
        self.state[plane] = golden.bits(state).copy()

    def write_errors(self, errors):
        self.errors = np.stack(errors)

    def write_residual(self, residuals):
        self.residuals = np.stack(residuals)

    def require(self, allocation):
        self.packed_state = allocation.packed_state
        self.residuals, self.errors = (np.zeros((self.nodes, allocation.length), dtype=np.uint32) for _ in range(2))
        self.weights, self.master = self.errors.copy(), self.errors[0].copy()
        self.state = [np.full(allocation.length, 0x7fc0_0000, dtype=np.uint32) for _ in range(allocation.planes)]

    @property
    def has_codebook(self):
        return self.codec.codebook_words > 0

    def write_codebook(self, centroids):
        self.codec = self.codec.bind(centroids)
        self.codebooks.append(centroids)
        return self.nodes * 2 * len(centroids)

    def distribute(self, weights):
        self.master = golden.bits(weights).copy()
        decoded = golden.distribute(self.master, self.nodes, weight_codec=self.codec, segment=self.segment)
        self.weights = np.tile(decoded, (self.nodes, 1))
        self.residuals = np.zeros((self.nodes, len(weights)), dtype=np.uint32)

    def read_residual(self, length):
        return golden.floats(self.residuals)

    def read_master(self, length):
        return golden.floats(self.master)

    def clear_state(self, length, *, packed_state):
        assert packed_state == self.packed_state
        for plane in self.state:
            plane[:] = 0

    def clear(self):
        self.words = np.full(self.nodes, (1 << 32) - 1000)  # as if just before they wrap
        self.masked = np.full(self.nodes, (1 << 32) - 10)
        self.fetched = 0

    def write(self, settings):
        self.optimizer = settings

    def write_gradients(self, gradients):
        self.gradients = golden.bits(np.stack(gradients))

    def fused_update(self, length):
        numbers = dataclasses.asdict(self.optimizer)
        packed_state = numbers.pop("packed_state")
        assert packed_state == self.packed_state
        update = golden.fused_update(self.gradients, self.master, self.state, golden.settings(**numbers),
                                     packed_state=packed_state, weight_codec=self.codec,
                                     gradient_codec=self.sums, residuals=self.residuals)
        self.master = update.master
        self.weights[:] = update.weights
        self.state = update.state
        self.words += update.traffic.words
        self.steps += 1
        self.fault(self)
        sums = golden.floats(update.total)
        return Outcome(
            cycles=update.traffic.bound + 100,
            local_nan=tuple(np.flatnonzero(np.isnan(golden.floats(self.gradients)).any(axis=1)).tolist()),
            not_finite=() if np.isfinite(sums).all() else (0,))

    def load(self, programs, *, changes=False):
        (command,) = programs[0][1]
        assert (command.operation, command.gradient_base) == (Operation.FUSED_UPDATE, 0)
        self.program = command.length

    def run(self, *, collectives):
        assert collectives == 1
        return Passes(events=[], traces=[], outcome=self.fused_update(self.program))

    def read(self):
        return [{entry.name: 0 for entry in COUNTERS} | {
                    "WORDS_SENT": int(words) % (1 << 32), "SCATTER_REDUCE_CYCLES": self.steps,
                    "ELEMENTS_MASKED": int(masked) % (1 << 32), "MASK_WORDS_FETCHED": self.fetched}
                for words, masked in zip(self.words, self.masked, strict=True)]

    def mask(self, jobs, *, alternative, behind):
        assert len(jobs) == self.nodes
        assert behind == self.weights.shape[1]
        results, replaced = masked(jobs, alternative)
        self.masked += replaced
        self.alternatives.append(alternative)
        self.mask_fault(self, results)
        return MaskOutcome(results=results, replaced=replaced, cycles=100, commands=1)

    def clear_errors(self, length):
        self.errors = np.zeros((self.nodes, length), dtype=np.uint32)

    def read_errors(self, length):
        return golden.floats(self.errors)

    def sparsify(self, length, *, threshold):
        self.gradients, self.errors = masking.sparsify(self.gradients, self.errors, golden.bits([threshold])[0])
        dropped = [length - int(count) for count in np.count_nonzero(self.gradients, axis=1)]
        self.masked += dropped
        return SparsifyOutcome(dropped=dropped, cycles=50)

    def read_weights(self, length, ranks=None):
        self.reads += self.nodes if ranks is None else len(ranks)
        return golden.floats(self.weights if ranks is None else self.weights[ranks])

    def read_state(self, length, plane, *, packed_state):
        assert packed_state == self.packed_state
        return golden.floats(self.state[plane])


def schedule(examples, config):
    """All batches of a run."""
    batches = Batches(examples, config)
    return [batches.take() for _ in range(batches.total)]


def after(step, action):
    """A fault at one step."""
    return lambda ring: action(ring) if ring.steps == step else None
