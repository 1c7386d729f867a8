"""Random programs for nodes with two or three queues, and golden nodes with random contents."""

import copy
import dataclasses

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from hdl.group import GROUP
from host.driver.optimizer_settings import Rule, Settings
from host.features.codebook.codebooks import codebook
from host.features.programs.order import Region
from host.features.programs.program import CompiledProgram, Program, ProgramError, Queue, Task
from sim.golden import ring
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from sim.golden.features.programs.program_nodes import ProgramNodes
from sim.golden.nodes import Placed

#: Number of groups that commands use in each memory. In weight memory, weights of odd passes are stored after weights
#: of even passes.
GROUPS = 12
ELEMENTS = GROUP * GROUPS

#: Maximum number of commands in a program. With it, the trace can hold the starts and ends of four passes.
MOST = 16

_COLLECTIVES = ("FUSED_UPDATE", "ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER", "BROADCAST")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A program, and the conditions under which it runs."""

    program: CompiledProgram
    passes: int
    parity: int
    settings: Settings
    golden: ProgramNodes  # golden nodes with the initial contents of memories


def _part(generator: np.random.Generator, stride: int = 1) -> tuple[int, int]:
    """Draw the base and length of a range of memory. The range may be empty, and may end inside a group."""
    groups = int(generator.integers(1, (GROUPS - 1) // stride + 2))
    base = int(generator.integers(0, GROUPS - stride * (groups - 1)))
    length = GROUP * groups - (int(generator.integers(0, GROUP)) if generator.random() < 0.4 else 0)
    return GROUP * base, length if generator.random() < 0.95 else 0


def _compute(generator: np.random.Generator, nodes: int) -> dict[str, object]:
    """Draw a QUIESCE, or a COMPUTE with a different duration on each node."""
    if generator.random() < 0.1:
        return {"operation": "QUIESCE"}
    (target, length), (source, other) = _part(generator), _part(generator)
    # Both regions start at a group boundary. They do not overlap, even if partial groups are counted as whole groups.
    length = min(length, other, abs(target - source))
    durations = [int(cycles) for cycles in generator.integers(0, 400, nodes)]
    return {"operation": "COMPUTE", "reads": [Region("gradients", source, length)],
            "writes": [Region("gradients", target, length)], "duration": max(durations),
            "fields": {"gradient_base": target, "state_base": source, "length": length, "duration": durations}}


def _communicate(generator: np.random.Generator, nodes: int) -> dict[str, object]:
    """Draw a LATCH, a QUIESCE or a collective."""
    if generator.random() < 0.15:
        return {"operation": str(generator.choice(["LATCH", "QUIESCE"]))}
    operation = str(generator.choice(_COLLECTIVES))
    stride = int(generator.choice([1, 1, 2, 3]))
    (gradients, length), (weights, other) = _part(generator, stride), _part(generator, stride)
    alternate = int(generator.integers(2))
    length = min(length, other)
    summed = Region("gradients", gradients, length, stride)
    moved = Region("weights", weights, length, stride, ELEMENTS * alternate)
    state = Region("state", GROUP * int(generator.integers(0, 4)), -(-length // GROUP) * GROUP)
    fields: dict[str, object] = {"length": length, "stride": stride, "block_offset": int(generator.integers(nodes))}
    reads, writes = [], []
    if operation in ("FUSED_UPDATE", "ALL_REDUCE", "REDUCE_SCATTER"):
        fields["gradient_base"] = gradients
        reads.append(summed)
        writes += [] if operation == "FUSED_UPDATE" else [summed]
    if operation in ("FUSED_UPDATE", "ALL_GATHER", "BROADCAST"):
        fields |= {"weight_base": weights, "alternate": alternate}
        reads.append(moved)
        writes.append(moved)
    if operation == "FUSED_UPDATE":
        fields["state_base"] = state.base
        reads.append(state)
        writes.append(state)
    if operation == "BROADCAST":
        fields["root"] = int(generator.integers(nodes))
    return {"operation": operation, "reads": reads, "writes": writes, "fields": fields, "collective": True}


def _move(generator: np.random.Generator, nodes: int) -> dict[str, object]:
    if generator.random() < 0.1:
        return {"operation": "QUIESCE"}
    operation = str(generator.choice(["MOVE_OUT", "MOVE_IN"]))
    (near, length), (far, other) = _part(generator), _part(generator)
    length = min(length, other)
    places = [Region("activations", near, length), Region("far", far, length)]
    reads, writes = places if operation == "MOVE_OUT" else reversed(places)
    return {"operation": operation, "reads": [reads], "writes": [writes], "duration": 8 * length,
            "fields": {"weight_base": near, "state_base": far, "length": length}}


def _wait_for_nodes(generator: np.random.Generator, program: Program, tasks: list[Task], nodes: int) -> None:
    """Make a command on some nodes wait for another command on other nodes, in most cases an earlier one."""
    first, second = sorted(int(index) for index in generator.integers(0, len(tasks), 2))
    if generator.random() < 0.2:
        first, second = second, first
    units = [int(unit) if generator.random() < 0.7 else None for unit in generator.integers(0, nodes, nodes)]
    lag = int(generator.choice([0, 0, 0, 1, 2, 3]))
    program.wait(tasks[second], tasks[first], lag=lag, unit=units)


def _with_node_waits(generator: np.random.Generator, program: Program, tasks: list[Task],
                     nodes: int) -> CompiledProgram:
    """Add random waits for other nodes, leaving out waits that would create a cycle."""
    compiled = program.compile()
    for _ in range(int(generator.integers(2, 12))):
        before = copy.deepcopy(program._remotes)
        try:
            _wait_for_nodes(generator, program, tasks, nodes)
            compiled = program.compile()
        except ProgramError:
            program._remotes = before
    return compiled


def _program(generator: np.random.Generator, config: NodeConfig, nodes: int, *, remote: bool) -> CompiledProgram:
    """Draw a program with all necessary waits and some that are not necessary."""
    program = Program(queues=config.queues, depth=int(config.programs.depth), nodes=nodes if remote else None)
    makers = _compute, _communicate, _move
    tasks: list[Task] = []
    for index in range(int(generator.integers(1, MOST + 1))):
        queue = Queue(int(generator.integers(config.queues)))
        tasks.append(program.add(f"command {index}", queue=queue,
                                 **makers[queue](generator, nodes)))  # type: ignore[arg-type]
    for _ in range(int(generator.integers(0, 4))):
        first, second = sorted(int(index) for index in generator.integers(0, len(tasks), 2))
        lag = int(generator.integers(0, 4))
        if lag or first != second:
            program.wait(tasks[second], tasks[first], lag=lag)
    return _with_node_waits(generator, program, tasks, nodes) if remote else program.compile()


def _random(generator: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Draw normally distributed numbers of various magnitudes, with a random fraction of zeros."""
    values = generator.standard_normal(shape) * 2.0 ** generator.integers(-6, 6, shape)
    values[generator.random(shape) < generator.choice([0.0, 0.5, 0.95])] = 0
    return ring.bits(values)


def centroids_of(config: NodeConfig) -> npt.NDArray[np.uint32] | None:
    """Draw centroids for the weight codec of the nodes, if it uses any."""
    if not config.codebook_words:
        return None
    return codebook(config.weights.codec, np.random.default_rng(0).standard_normal(1000).astype(np.float32))


def random_case(generator: np.random.Generator, config: NodeConfig, nodes: int, *, remote: bool = False) -> Case:
    """Draw a program for a ring of nodes with this configuration, with settings and contents of all memories.

    With ``remote``, commands also wait for other nodes.
    """
    program = _program(generator, config, nodes, remote=remote)
    passes = int(generator.integers(1, 5))
    rule = Rule(int(generator.integers(0, min(config.memories.planes, 1) + 1)))
    scalars = {"gradient_scale": float(generator.choice([1.0, 0.25, -0.5])), "learning_rate": 0.125}
    if rule is Rule.MOMENTUM:
        scalars |= {"first_decay": 0.75, "first_gain": 1.0}
    codec, centroids = WEIGHT_CODECS[config.weights.codec], centroids_of(config)
    golden = ProgramNodes(nodes, gradient_words=ELEMENTS, planes=config.memories.planes,
                          weights=np.zeros(GROUP, np.uint32),
                          weight_codec=codec if centroids is None else codec.bind(centroids),
                          gradient_codec=GRADIENT_CODECS[config.gradients], segment=config.segment,
                          activation_words=ELEMENTS, far_words=ELEMENTS)
    golden.weight_stride = ELEMENTS
    golden.gradients = _random(generator, (nodes, ELEMENTS))
    golden.residuals = _random(generator, (nodes, ELEMENTS)) * np.uint32(config.has_residual)
    golden.weights = _random(generator, (nodes, 2 * ELEMENTS))
    golden.masters = _random(generator, (nodes, ELEMENTS + 4 * GROUP))
    golden.activations, golden.far = (_random(generator, (nodes, ELEMENTS)) for _ in range(2))
    golden.state = [_random(generator, golden.masters.shape) for _ in golden.state]
    golden.settings = ring.settings(rule, **scalars)
    golden.execute(Placed("LATCH", [{}] * nodes), range(nodes))
    return Case(program=program, passes=passes, parity=int(generator.integers(2)),
                settings=Settings(rule=rule, **scalars), golden=golden)
