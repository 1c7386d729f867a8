"""Golden nodes for testing host code without gateware."""

import functools

import numpy as np

from hdl.config import Memories, NodeConfig, Weights
from hdl.registry import section
from host.driver.memory import errors_base
from host.driver.ring import Ring
from host.models.transformer import TransformerConfig
from host.training.batches import Batches
from host.training.optimizers import Adam
from host.training.record import TrainingConfig
from host.transports.golden.session import open_golden
from sim.golden import masking
from sim.golden import ring as golden

SMALL = TransformerConfig(width=8, heads=2, hidden=6, context=8)
TEXT = TrainingConfig(batch=30, max_steps=5, interval=2, optimizer=Adam(learning_rate=0.03))
#: Value of memory words that have never been written.
NAN = 0x7FC0_0001


class Hooks:
    """Callbacks that run after commands of golden nodes, and counts of these commands.

    Members
    -------
    steps, lists, moved, loads : int
        Number of updates of all nodes, layer lists, words moved by MOVE_IN and MOVE_OUT, and program loads.
    """

    def __init__(self, nodes, *, fault, broken):
        self.nodes, self.fault, self.broken = nodes, fault, broken
        self.steps = self.lists = self.moved = self.loads = 0
        self._carry_out, nodes.carry_out = nodes.carry_out, self.carry_out

    def carry_out(self, ranks, commands, **options):
        events = self._carry_out(ranks, commands, **options)
        name = commands[ranks[0]].operation.name
        if name == "FUSED_UPDATE":
            self.steps += 1
            self.fault()
        elif name == "LAYERS":
            self.lists += 1
            self.broken()
        elif name in ("MOVE_IN", "MOVE_OUT"):
            self.moved += commands[ranks[0]].length
        return events


class GoldenRing(Ring):
    """Ring of golden nodes. Clearing its counters sets them not to zero, but to values that soon wrap around.

    Unwritten memory contains NaN, except in the weight memory. ``weights``, ``errors`` and ``residuals`` are views of
    the memories, from the start to the length of the run's vector; ``master`` and ``state`` are copies.

    Parameters
    ----------
    nodes : int
    fault, broken : callable
        Called with this ring after each update and each layer list, respectively.
    config : NodeConfig, optional
        Node configuration; by default, one with the given ``options``.

    Members
    -------
    golden : GoldenNodes
    hooks : Hooks
    reads : int
        Number of weight rows read by the host.
    """

    def __init__(self, nodes, *, fault=lambda ring: None, broken=lambda ring: None, config=None, **options):
        self.golden, devices = open_golden(node_of(**options) if config is None else config, nodes=nodes, latency=16)
        super().__init__(devices)
        self.fault, self.broken = fault, broken
        self.hooks = Hooks(self.golden, fault=lambda: self.fault(self), broken=lambda: self.broken(self))
        for memory in (self.golden.gradients, self.golden.activations, self.golden.far):
            memory[:] = NAN
        self.length = self.reads = 0
        parts = [(self.memory, "require"), (self.memory, "read_weights"), (self.counters, "clear")]
        for part, name in parts if self.config.programs is None else [*parts, (self.programs, "load")]:
            setattr(part, name, functools.partial(getattr(self, f"_{name}"), getattr(part, name)))
        self.connect()

    def _require(self, require, allocation):
        require(allocation)
        self.length = allocation.length

    def _read_weights(self, read, where, ranks=None):
        self.reads += self.nodes if ranks is None else len(ranks)
        return read(where, ranks)

    def _clear(self, clear):
        clear()
        for name, room in (("WORDS_SENT", 1000), ("WORDS_RECEIVED", 1000), ("COMPRESSED_WORDS", 1000),
                           ("ELEMENTS_MASKED", 10)):
            self.golden.counters[name][:] = (1 << 32) - room

    def _load(self, load, programs, **options):
        self.hooks.loads += 1
        load(programs, **options)

    @property
    def steps(self):
        return self.hooks.steps

    @property
    def lists(self):
        return self.hooks.lists

    @property
    def weights(self):
        return self.golden.weights[:, :self.length]

    @property
    def errors(self):
        return self.golden.weights[:, errors_base(self.length):][:, :self.length]

    @property
    def residuals(self):
        return self.golden.residuals[:, :self.length]

    @property
    def master(self):
        return (self.memory.read_master(self.length).view(np.uint32) if self.formats.has_master
                else self.weights[0].copy())

    @property
    def state(self):
        return [self.memory.read_state(self.length, plane).view(np.uint32)
                for plane in range(self.config.memories.planes)]

    @property
    def activations(self):
        return self.golden.activations

    @property
    def gradients(self):
        return self.golden.gradients


def written_to(ring):
    """Start counting the words that the host writes to gradient and activation memories; return the counts."""
    written = {"gradients": 0, "activations": 0}

    def wrap(name, write):
        def counted(vectors, *arguments, **options):
            written[name] += sum(map(len, vectors))
            return write(vectors, *arguments, **options)
        return counted

    ring.memory.write_gradients = wrap("gradients", ring.memory.write_gradients)
    ring.memory.write_activations = wrap("activations", ring.memory.write_activations)
    return written


def compute_options(*, words=8192, centroids=0, sequences=False, **options):
    """Configuration options for nodes with COMPUTE."""
    compute = section("Compute")(rows=4, activations=words, codebook=centroids, scale_mask=sequences,
                                 sequences=sequences)
    return {"programs": section("Programs")(), "compute": compute, **options}


def far_options(*, words=8192, far_words=8192, **options):
    """Configuration options for nodes with COMPUTE and far memory."""
    compute = section("Compute")(rows=4, activations=words, scale_mask=True, sequences=True, buffer_tags=True,
                                 far=far_words)
    return {"programs": section("Programs")(depth=256, move_queue=True), "masking": False, "sparsify": False,
            "compute": compute, **options}


def node_of(*, weight_codec="raw", gradient_codec="zero_value", **options):
    """Configuration with the given codecs and ``options``; a single node with it has room for the text model."""
    return NodeConfig(weights=Weights(codec=weight_codec), gradients=gradient_codec, **{
        "memories": Memories(gradient=1 << 15, weight=1 << 15, state=1 << 14), **options})


def masked(jobs, alternative):
    """Matrices of the jobs of each node, as masked by the golden model."""
    return [[golden.floats(masking.apply(golden.bits(job.matrices), masking.kept(masking.Job(
        rows=job.rows, columns=job.columns, count=job.count, mask=masking.Mask(**vars(job.mask)))),
        golden.bits([alternative])[0])) for job in own] for own in jobs]


def trained(ring, length, *, packed_state):
    """Weights, master weights and optimizer state of a ring, as bytes."""
    vectors = [ring.memory.read_weights(length)]
    vectors += [ring.memory.read_master(length)] if ring.formats.has_master else []
    vectors += [ring.memory.read_state(length, plane, packed_state=packed_state)
                for plane in range(ring.config.memories.planes)]
    return b"".join(vector.tobytes() for vector in vectors)


def schedule(examples, config):
    """List all batches of a run, in order."""
    batches = Batches(examples, config)
    return [batches.take() for _ in range(batches.total)]


def after(step, action):
    """Create a fault that occurs after a given step."""
    return lambda ring: action(ring) if ring.steps == step else None
