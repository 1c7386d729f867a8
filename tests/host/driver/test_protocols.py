# amaranth: UnusedElaboratable=no
"""Contract that all kinds of rings must fulfil: flat rings, the rings of a grid, and the rings of tenants."""

import contextlib
import importlib
import inspect
import pkgutil
import re
import typing
from pathlib import Path

import numpy as np
import pytest

import host.driver
import host.features.grid
from hdl.config import SingleRing
from hdl.control.protocol import Operation
from hdl.features.grid.feature import Grid
from host.driver import protocols
from host.driver.command import Command
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.errors import ForeignTenantError
from host.driver.masking import Mask, MaskJob
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.driver.ring_collectives import WeightUpdates
from host.features.compute.list_compute import ListCompute
from host.features.grid.grid import Shape
from host.features.grid.switching import GridRings
from host.features.microbatches.ring_microbatches import RingMicrobatches
from host.features.programs.ring_programs import RingPrograms
from host.features.quantization.node_inference import NodeInference
from host.features.quorum.quorum_updates import QuorumUpdates
from host.features.tenants.tenants import TenantHost
from host.transports.session import TransportName, open_session
from sim.golden.ring import block_indices
from tests.host.features.grid.grids import CONFIG, open_grid
from tests.host.rings import CONFIGS, open_nodes
from tests.refusals import refuses

ROOT = Path(__file__).parents[3]
LENGTH = 100
#: Settings with which an update turns zero weights into the mean gradient.
MEAN = {"rule": Rule.SGD, "learning_rate": -1.0}
#: The tenants' windows: each has half of every memory.
WINDOWS = {name: (0, CONFIG.memory_map[name].words // 2)
           for name in ("gradients", "weights", "state_0", "activations")}


@contextlib.contextmanager
def open_ring():
    with open_nodes(2, config=CONFIG) as (ring, _):
        yield ring


@contextlib.contextmanager
def open_shape(shape):
    with open_grid(2, 2) as (grid, _):
        plan = grid.grid.plan(shape)
        grid.switch(plan)
        yield grid.ring(plan) if shape is Shape.FLAT else grid.rings(plan)


@contextlib.contextmanager
def open_tenant(*, own):
    """A tenant's ring, opened by the tenant's own driver or by the privileged host on the tenant's behalf."""
    with open_nodes(2, config=CONFIG) as (nodes, _):
        host = TenantHost(nodes.devices)
        host.grant(1, WINDOWS)
        host.change(1)
        ring = Ring([Device(device.transport, CONFIG, name=device.name, tenant=1) for device in nodes.devices]
                    if own else host.devices(1))
        ring.connect()
        yield ring


#: Configuration of golden nodes, with a single port so that cycles of the nodes are modelled.
GOLDEN = CONFIG.replace(topology=SingleRing(), features=())


@contextlib.contextmanager
def open_golden(*, shape=None):
    """Golden nodes, either in a single ring or in the rings of a grid."""
    config = GOLDEN if shape is None else GOLDEN.replace(topology=Grid())
    nodes, grid = (2, None) if shape is None else (4, (2, 2))
    with open_session(config, nodes=nodes, grid=grid, transport=TransportName.GOLDEN) as session:
        if shape is None:
            yield session.ring
            return
        plan = session.grid.grid.plan(shape)
        session.grid.switch(plan)
        yield session.grid.ring(plan) if shape is Shape.FLAT else session.grid.rings(plan)


RINGS = {"golden": open_golden, "golden_flat": lambda: open_golden(shape=Shape.FLAT),
         "golden_grid": lambda: open_golden(shape=Shape.GRID), "ring": open_ring,
         "flat": lambda: open_shape(Shape.FLAT), "grid": lambda: open_shape(Shape.GRID),
         "tenant": lambda: open_tenant(own=False), "driver": lambda: open_tenant(own=True)}
#: Components that some kinds of rings lack, each with the beginning of the error message it raises.
LACKING = {"grid": {"programs": "Programs must be of nodes in one flat ring, not in rings of shape grid",
                    "compute": "Lists of layers must be for nodes in one flat ring, not in rings of shape grid",
                    "quorum": "Quorum updates must be of nodes in one flat ring, not in rings of shape grid",
                    "microbatches": "Microbatches must be of nodes in one flat ring, not in rings of shape grid",
                    "inference": "Quantized inference must be of nodes in one flat ring, not in rings of shape grid"}}
LACKING["golden_grid"] = LACKING["grid"]
#: Kinds of rings that have no cycle model for collectives.
NOT_MODELLED = ("golden_flat", "golden_grid")
NO_ROUNDS = {"quorum": "Nodes must have rounds for gradients that may be late"}
NO_MICROBATCHES = {"microbatches": "Nodes must have features=(Microbatches(),) to sum several gradients each"}
NO_INFERENCE = {"inference": "Nodes must have quantization in their configuration, to infer"}
#: Driver classes of components that are provided by features.
CLASSES = {kind.__name__: kind for kind in (ListCompute, NodeInference, QuorumUpdates, RingMicrobatches,
                                            RingPrograms)}


@pytest.fixture(scope="module", params=list(RINGS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def ring(kind):
    with RINGS[kind]() as opened:
        yield opened


def members(kind):
    """Map the names of all members of a class or protocol, including inherited ones, to their declarations."""
    return {name: value for base in reversed(kind.__mro__) if base.__module__.startswith("host.")
            for name, value in vars(base).items() if not name.startswith("_")}


def parts():
    """Map the name of each component of a ring's driver to its class. Components that only flat rings have come
    last."""
    known = {**vars(protocols), **CLASSES}
    return {name: typing.get_type_hints(value.fget, known)["return"]
            for name, value in members(protocols.FlatRing).items() if isinstance(value, property)}


def mean(ring):
    """Write zero weights and gradients 1, 2, …, and return the weights expected after an update."""
    ring.memory.write_weights(np.zeros(LENGTH, np.float32))
    ring.memory.write_gradients([np.full(LENGTH, rank + 1, np.float32) for rank in range(ring.nodes)])
    ring.settings.write(Settings(gradient_scale=1 / ring.nodes, **MEAN))
    return (ring.nodes + 1) / 2


def check_lacking(ring, lacking):
    """Check that components have all their methods, and that missing components raise their error."""
    checked = set()
    lacking = {**NO_MICROBATCHES, **({} if ring.config.has("quantization") else NO_INFERENCE), **lacking}
    for name, kind in parts().items():
        if name in lacking:
            refuses(lacking[name], getattr, ring, name)
        else:
            part = getattr(ring, name)
            kind = WeightUpdates if name == "collectives" and "programs" in lacking else kind
            assert isinstance(part, kind), name
            for method, declared in members(kind).items():
                assert hasattr(part, method), (name, method)
                if inspect.isfunction(declared) and name != "collectives":
                    assert list(inspect.signature(getattr(part, method)).parameters) == [
                        arg for arg in inspect.signature(declared).parameters if arg != "self"], (name, method)
        checked.add(name)
    assert checked >= {"memory", "commands", "programs", "counters", "collectives", "local", "quorum", "compute",
                       "inference", "microbatches"}


def test_classes():
    """Driver classes have at most three levels of inheritance, and no module uses type casts."""
    def levels(kind):
        return kind.__module__.startswith("host.") + max(map(levels, kind.__bases__), default=0)

    checked = {}
    for package in (host.driver, host.features.grid):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                checked[kind] = levels(kind)
    assert max(checked.values()) == 3 == checked[GridRings] + 1
    assert len(checked) > 100
    casts = [path for package in ("host", "gradring") for path in (ROOT / package).rglob("*.py")
             if re.search(r"^\s*from typing import .*\bcast\b|\btyping\.cast\b", path.read_text(), re.MULTILINE)]
    assert casts == []


def test_parts(kind, ring):
    check_lacking(ring, {**NO_ROUNDS, **LACKING.get(kind, {})})


def test_parts_of_plain_nodes():
    """Accessing a component that the configuration lacks raises a clear error."""
    with open_nodes(1, config=CONFIGS["default"]) as (ring, _):
        for _ in range(2):
            check_lacking(ring, {**NO_ROUNDS, "compute": "Nodes must have compute in their configuration, to run "
                                                         "lists of layers"})


def test_memory(ring):
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((ring.nodes, LENGTH)).astype(np.float32)
    memory = ring.memory
    memory.require(Allocation(length=LENGTH, planes=1, errors=True))
    with pytest.raises(ValueError, match="Optimizer must need at most the 1 state planes of a node, not 2"):
        memory.require(Allocation(length=LENGTH, planes=2))
    buffers = memory.allocate(Allocation(length=LENGTH, planes=1, errors=True))
    for where in (LENGTH, buffers):
        memory.write_gradients(list(rows), where)
        memory.write_weights_of(list(-rows), where)
        memory.write_errors(list(2 * rows), where)
        memory.write_state(rows[0], where=where)
        np.testing.assert_array_equal(memory.read_gradients(where), rows)
        np.testing.assert_array_equal(memory.read_weights(where), -rows)
        np.testing.assert_array_equal(memory.read_weights(where, ranks=[1]), -rows[1:2])
        np.testing.assert_array_equal(memory.read_errors(where), 2 * rows)
        np.testing.assert_array_equal(memory.read_state(where), rows[0])
        memory.write_weights(rows[0], where)
        memory.clear_errors(where)
        memory.clear_state(where)
        np.testing.assert_array_equal(memory.read_weights(where), rows[:1].repeat(ring.nodes, axis=0))
        assert not memory.read_errors(where).any()
        assert not memory.read_state(where).any()
    for part in ("gradients", "weights", "state", "errors"):
        memory.allocator.free(getattr(buffers, part))
    memory.write_activations(list(rows), 32)
    np.testing.assert_array_equal(memory.read_activations(32, LENGTH), rows)
    for absent in (memory.clear_residual, memory.read_residual, memory.read_master):
        with pytest.raises(ValueError, match=r"^Nodes must have a (gradient|weight) codec"):
            absent(LENGTH)
    with pytest.raises(ValueError, match=r"^Vectors must be one per node, "):
        memory.write_gradients(list(rows[1:]))


def test_partition(kind, ring):
    """Each element has exactly one owner; in two dimensions, blocks are as large as in a flat ring."""
    owned = ring.partition.owned(LENGTH)
    assert sorted(np.concatenate(owned).tolist()) == list(range(LENGTH))
    assert sorted(map(len, owned)) == sorted(map(len, block_indices(LENGTH, ring.nodes)))
    for element in (0, 31, 32, LENGTH - 1):
        assert element in owned[ring.partition.owner(element, LENGTH)]
    assert ring.partition.root is None
    if kind in LACKING:
        with pytest.raises(ValueError, match=r"^Groups must have their owners in the rings of a plan, "):
            ring.partition.set_root(0)
        return
    ring.partition.set_root(1)
    assert [len(block) for block in ring.partition.owned(LENGTH)][:2] == [0, LENGTH]
    ring.partition.set_root(None)


def check_cycles(kind, outcome):
    """Check that cycle counts are positive, or None for rings without a cycle model."""
    assert outcome.cycles is None if kind in NOT_MODELLED else outcome.cycles > 0


def test_updates(kind, ring):
    expected = mean(ring)
    outcome = ring.collectives.fused_update(LENGTH)
    check_cycles(kind, outcome)
    assert (ring.memory.read_weights(LENGTH) == expected).all()
    weights = np.arange(LENGTH, dtype=np.float32)
    ring.collectives.distribute(weights)
    assert (ring.memory.read_weights(LENGTH) == weights).all()


def test_counters(kind, ring):
    """The counters of every node count an update. A tenant's driver may not clear the counters."""
    if kind == "driver":
        with pytest.raises(ForeignTenantError):
            ring.counters.clear()
    else:
        ring.counters.clear()
        assert not any(node["WORDS_SENT"] for node in ring.counters.read())
    mean(ring)
    ring.collectives.fused_update(LENGTH)
    counters = ring.counters.read()
    assert sum(node["WORDS_SENT"] for node in counters) == sum(node["WORDS_RECEIVED"] for node in counters) > 0


def test_settings(ring):
    mean(ring)
    known = ring.settings.known
    assert known["LEARNING_RATE"] == -1
    ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1.0, learning_rate=0.5))
    assert ring.settings.known["LEARNING_RATE"] == 0.5
    ring.settings.write_registers(known)
    assert ring.settings.known == known


def test_local_operations(ring):
    ring.memory.write_gradients([np.arange(LENGTH, dtype=np.float32)] * ring.nodes)
    ring.memory.clear_errors(LENGTH)
    assert ring.local.sparsify(LENGTH, threshold=10).dropped == [10] * ring.nodes
    np.testing.assert_array_equal(ring.memory.read_errors(LENGTH), [[*range(10), *[0] * (LENGTH - 10)]] * ring.nodes)
    job = MaskJob(matrices=np.ones((1, 3, 3), np.float32), mask=Mask(triangle=True))
    outcome = ring.local.mask([[job]] * ring.nodes, alternative=-1.0)
    assert outcome.replaced == [3] * ring.nodes
    np.testing.assert_array_equal(outcome.results[-1][0], [[[1, -1, -1], [1, 1, -1], [1, 1, 1]]])


def test_programs(kind, ring):
    """A program of one update runs several passes, and its events arrive in order."""
    if "programs" in LACKING.get(kind, {}):
        return
    expected = mean(ring)
    ring.programs.load([[[], [Command(operation=Operation.FUSED_UPDATE, rank=rank, size=ring.nodes, length=LENGTH,
                                      tag=3)]] for rank in range(ring.nodes)])
    passes = ring.programs.run(collectives=1, passes=2, traced=False)
    assert [[event.tag for event in own] for own in passes.events] == [[3, 3]] * ring.nodes
    check_cycles(kind, passes.outcome)
    assert (ring.memory.read_weights(LENGTH) == 2 * expected).all()


def test_collectives(kind, ring):
    """Submitted collectives complete in order."""
    if kind in LACKING:
        return
    gradients = np.arange(ring.nodes * LENGTH, dtype=np.float32).reshape(ring.nodes, LENGTH)
    ring.memory.write_gradients(list(gradients))
    pending = [ring.collectives.submit(Operation.ALL_REDUCE, LENGTH) for _ in range(2)]
    for outcome in ring.commands.wait(*pending):
        check_cycles(kind, outcome)
    assert (ring.memory.read_gradients(LENGTH) == ring.nodes * gradients.sum(axis=0)).all()
    ring.memory.write_weights_of(list(gradients))
    ring.collectives.broadcast(LENGTH, root=1)
    assert (ring.memory.read_weights(LENGTH) == gradients[1]).all()


def test_recovery(kind, ring):
    """Recovery clears settings but not memories, and commands run again; tenants cannot recover a ring."""
    expected = mean(ring)
    if kind == "driver":
        with pytest.raises(RingError, match=r"^The ring must be recovered by the privileged host"):
            ring.recover()
        return
    ring.recover()
    assert ring.settings.known == {}
    ring.settings.write(Settings(gradient_scale=1 / ring.nodes, **MEAN))
    ring.collectives.fused_update(LENGTH)
    assert (ring.memory.read_weights(LENGTH) == expected).all()
