# amaranth: UnusedElaboratable=no
"""Collectives on parts of a vector, updates split into several commands, and the numbers of collectives."""

import itertools

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Rule, Settings
from host.features.codebook.codebooks import codebook
from sim.golden import moments
from sim.golden import ring as golden
from tests.host import rings
from tests.refusals import refuses

DEFAULT = rings.CONFIGS["default"]
SCALARS = {"gradient_scale": 0.25, "learning_rate": 0.5, "first_decay": 0.75}


def cut(generator, length, most=4):
    """Cut a vector at random group boundaries into parts."""
    groups = -(-length // 32)
    inner = generator.choice(np.arange(1, groups), int(generator.integers(1, most)), replace=False)
    return list(itertools.pairwise([0, *(32 * np.sort(inner)).tolist(), length]))


def settings(config, *, packed_state=False):
    rule = Rule.MOMENTUM if config.memories.planes else Rule.SGD
    return Settings(rule=rule, packed_state=packed_state, **SCALARS)


def reset(ring, weights, state, where, *, packed_state):
    """Give all nodes the same memory contents, regardless of earlier commands."""
    ring.collectives.distribute(weights, where)
    ring.settings.write(settings(ring.devices[0].config, packed_state=packed_state))
    if state is not None:
        ring.memory.write_state(state, where=where, packed_state=packed_state)


def found(ring, where, *, packed_state):
    """Contents of all memories that a fused update changes."""
    config = ring.devices[0].config
    memories = [ring.memory.read_weights(where)]
    if config.weights.has_master:
        memories.append(ring.memory.read_master(where))
    if config.has_residual:
        memories.append(ring.memory.read_residual(where))
    if config.memories.planes:
        memories.append(ring.memory.read_state(where, packed_state=packed_state))
    return [memory.view(np.uint32).tolist() for memory in memories]


def held(state, *, packed_state):
    """Optimizer state as it is read back from the nodes, which may store it in packed form."""
    bits = golden.bits(state)
    return moments.unpack(moments.pack(bits), len(bits)) if packed_state else bits


@pytest.mark.parametrize(("name", "nodes"), [
    ("default", 1), ("default", 2), ("default", 3), ("default", 4), ("mx9", 3), ("table", 3), ("centroid", 3),
    ("narrow", 3)])
def test_updates_of_random_cuts(name, nodes):
    """Updating the parts of a vector in any order is bit-identical to a single update, for buffers at any base."""
    config = rings.CONFIGS[name]
    generator = np.random.default_rng(nodes)
    length = 900 if name == "narrow" else 1300
    weights, gradients = rings.random(generator, length), rings.random(generator, (nodes, length), density=0.8)
    state = rings.random(generator, length) if config.memories.planes else None
    with rings.open_nodes(nodes, config=config) as (ring, _):
        ring.memory.allocate(Allocation(length=20))
        where = ring.memory.allocate(Allocation(length=length, planes=min(config.memories.planes, 1)))
        if ring.formats.has_codebook:
            ring.memory.write_codebook(codebook(config.weights.codec, weights))
        for packed_state in (False, True) if name == "default" else (False,):
            reset(ring, weights, state, where, packed_state=packed_state)
            ring.memory.write_gradients(list(gradients), where)
            ring.collectives.fused_update(where)
            expected = found(ring, where, packed_state=packed_state)
            if name == "default":
                update = golden.fused_update(
                    golden.bits(gradients), golden.bits(weights),
                    [held(state, packed_state=packed_state)],
                    golden.settings(Rule.MOMENTUM, **SCALARS), packed_state=packed_state)
                assert expected[0] == [update.weights.tolist()] * nodes
            for trial in range(4):
                parts = cut(generator, length)
                reset(ring, weights, state, where, packed_state=packed_state)
                ring.memory.write_gradients(list(gradients), where)
                pending = [ring.collectives.submit(Operation.FUSED_UPDATE, where, first=start, length=stop - start)
                           for start, stop in generator.permutation(parts).tolist()]
                ring.commands.wait(*pending)
                assert found(ring, where, packed_state=packed_state) == expected, f"{trial=}, {parts=}"


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_sums_of_random_cuts(nodes):
    generator = np.random.default_rng(nodes)
    length = 1700
    gradients = rings.random(generator, (nodes, length), density=0.5)
    bits = golden.bits(gradients)
    weights = rings.random(generator, (nodes, length))
    expected = {Operation.ALL_REDUCE: np.tile(golden.all_reduce(bits)[0], (nodes, 1)),
                Operation.REDUCE_SCATTER: golden.reduce_scatter(bits)[0],
                Operation.ALL_GATHER: np.tile(golden.all_gather(golden.bits(weights))[0], (nodes, 1)),
                Operation.BROADCAST: np.tile(golden.bits(weights[1]), (nodes, 1))}
    with rings.open_nodes(nodes, config=DEFAULT) as (ring, _):
        for operation, total in expected.items():
            parts = cut(generator, length, most=6)
            ring.memory.write_gradients(list(gradients))
            ring.memory.write_weights_of(list(weights))
            ring.commands.wait(*(ring.collectives.submit(operation, length, first=start, length=stop - start, root=1)
                                 for start, stop in parts))
            summed = operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER)
            result = (ring.memory.read_gradients if summed else ring.memory.read_weights)(length)
            assert np.array_equal(result.view(np.uint32), total), f"{operation.name}, {parts=}"


@pytest.mark.parametrize(("name", "nodes", "length"), [
    ("default", 1, 700), ("default", 2, 1300), ("default", 3, 1000), ("default", 4, 33), ("default", 5, 1300),
    ("centroid", 3, 1300), ("mx9", 1, 300), ("mx9", 2, 1300), ("table", 4, 1300), ("narrow", 3, 900)])
def test_update_in_three_commands(name, nodes, length):
    """REDUCE_SCATTERs of parts, an update of owned blocks and one ALL_GATHER equal a fused update, including master
    weights and residuals. Weights pass through their codec twice, but the second pass changes nothing."""
    config = rings.CONFIGS[name]
    generator = np.random.default_rng(nodes)
    weights, gradients = rings.random(generator, length), rings.random(generator, (nodes, length), density=0.8)
    state = rings.random(generator, length) if config.memories.planes else None
    with rings.open_nodes(nodes, config=config) as (ring, _):
        where = ring.memory.allocate(Allocation(length=length, planes=min(config.memories.planes, 1)))
        if ring.formats.has_codebook:
            ring.memory.write_codebook(codebook(config.weights.codec, weights))
        for packed_state in (False, True) if config.memories.planes else (False,):
            results = []
            for strict in (False, True):
                reset(ring, weights, state, where, packed_state=packed_state)
                ring.memory.write_gradients(list(gradients), where)
                if not strict:
                    ring.collectives.fused_update(where)
                else:
                    parts = cut(generator, length) if length > 64 else [(0, length)]
                    submit = ring.collectives.submit
                    ring.commands.wait(*(submit(Operation.REDUCE_SCATTER, where, first=start, length=stop - start)
                                         for start, stop in reversed(parts)),
                                       ring.collectives.submit_owned_update(where),
                                       submit(Operation.ALL_GATHER, where))
                results.append(found(ring, where, packed_state=packed_state))
            assert results[0] == results[1], f"{packed_state=}"


@pytest.mark.parametrize(("options", "message"), [
    ({"first": 16}, "be 1,284 from 16 on"), ({"first": 32, "length": 40}, "be 40 from 32 on"),
    ({"length": 1301}, "be 1,301 from 0 on"), ({"first": 1312}, "be -12 from 1,312 on"),
    ({"first": -32}, "be 1,332 from -32 on")])
def test_parts_begin_and_end_with_groups(options, message):
    with rings.open_nodes(2, config=DEFAULT) as (ring, _):
        refuses(f"Part of 1,300 elements must begin and end with a group of 32, not {message}",
                ring.collectives.submit, Operation.ALL_REDUCE, 1300, **options)


def test_masters_beside_packed_state():
    with rings.open_nodes(2, config=rings.CONFIGS["mx9"]) as (ring, _):
        ring.settings.write(settings(rings.CONFIGS["mx9"], packed_state=True))
        refuses("Part of a vector must have state in binary32 on nodes with a weight codec, whose masters lie beside "
                "it and are never packed, not in bfloat16", ring.collectives.submit, Operation.FUSED_UPDATE, 640,
                first=320)


class TestNumbers:
    """Nodes use the numbers of collectives to distinguish them."""

    @pytest.mark.parametrize("lengths", [(600, 600), (600, 568), (32, 600)])
    @pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.FUSED_UPDATE])
    def test_swapped_on_one_node(self, lengths, operation):
        """If one node swaps two collectives, both fail, and no memory contains a mixture of the two sums."""
        generator = np.random.default_rng(1)
        nodes = 3
        gradients = rings.random(generator, (nodes, 1300))
        bits = golden.bits(gradients)
        totals = [golden.all_reduce(bits[:, base:base + length])[0]
                  for base, length in zip((0, 640), lengths, strict=True)]
        with rings.open_nodes(nodes, config=DEFAULT) as (ring, _):
            for odd in range(nodes):
                ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1, learning_rate=1))
                ring.memory.write_gradients(list(gradients))
                ring.memory.write_weights(np.zeros(1300, np.float32))
                for turn in range(2):
                    for rank, device in enumerate(ring.devices):
                        which = turn ^ (rank == odd)
                        device.push(Command(operation=operation, rank=rank, size=nodes, length=lengths[which],
                                            epoch=200, collective=7 + which, gradient_base=640 * which,
                                            weight_base=640 * which))
                events = [[device.pop_event(20 * rings.TIMEOUT).status for _ in range(2)] for device in ring.devices]
                first = {event for event, _ in events}
                # Nodes compare the lengths of collectives before they compare their numbers.
                wrong = {EventStatus.WRONG_COLLECTIVE}
                if lengths[0] != lengths[1]:
                    wrong.add(EventStatus.WRONG_LENGTH)
                assert first & wrong, f"{odd=}: {events}"
                assert first <= wrong | {EventStatus.PEER_ABORT}, f"{odd=}: {events}"
                result, weights = ring.memory.read_gradients(1300).view(np.uint32), ring.memory.read_weights(1300)
                for base, total in zip((0, 640), totals, strict=True):
                    part = np.s_[:, base:base + len(total)]
                    assert ((result[part] == bits[part]) | (result[part] == total)).all(), f"{odd=}"
                    assert ((weights[part] == 0) | (weights[part] == -golden.floats(total))).all(), f"{odd=}"
                ring.recover()
                ring.memory.write_gradients(list(gradients))
                ring.collectives.all_reduce(600)
                assert (ring.memory.read_gradients(600).view(np.uint32) == golden.all_reduce(bits[:, :600])[0]).all()

    @pytest.mark.parametrize("nodes", [1, 2])
    def test_repeated(self, nodes):
        """Until a link reset, the previous collective's number is rejected, regardless of commands in between."""
        gradients = np.random.default_rng(nodes).standard_normal((nodes, 100)).astype(np.float32)
        with rings.open_nodes(nodes, config=DEFAULT) as (ring, _):
            def push(number, operation=Operation.ALL_REDUCE, **fields):
                for rank, device in enumerate(ring.devices):
                    device.push(Command(**{"operation": operation, "rank": rank, "size": nodes, "length": 100,
                                           "collective": number, **fields}))
                events = [device.pop_event(20 * rings.TIMEOUT) for device in ring.devices]
                assert len({event.status for event in events}) == 1
                assert all(event.detail == 0 for event in events if event.status is EventStatus.REPEATED)
                return events[0].status

            ring.memory.write_gradients(list(gradients))
            assert push(5) is EventStatus.OK
            total = ring.memory.read_gradients(100)
            assert push(5) is EventStatus.REPEATED
            assert push(5, Operation.BROADCAST, length=32) is EventStatus.REPEATED
            assert push(9, Operation.QUIESCE) is EventStatus.OK
            assert push(5, length=1 << 20) is EventStatus.BAD_LENGTH
            assert push(6, length=1 << 20) is EventStatus.BAD_LENGTH
            assert push(5) is EventStatus.REPEATED
            assert np.array_equal(ring.memory.read_gradients(100), total)
            assert push(6) is EventStatus.OK
            assert push(5) is EventStatus.OK
            ring.recover()
            assert push(5) is EventStatus.OK
            ring.recover()
            assert push(0) is EventStatus.OK

    def test_driver_never_repeats(self):
        """The driver's collective numbers wrap around, and each command, of whatever kind, gets a new number."""
        with rings.open_nodes(2, config=DEFAULT) as (ring, _):
            ring.memory.write_gradients([np.ones(40, np.float32)] * 2)
            ring.commands.resume_from(0, (1 << 16) - 3)
            numbers = []
            for _ in range(6):
                pending = ring.collectives.submit(Operation.ALL_REDUCE, 40)
                numbers += {command.collective for command in pending.commands.values()}
                pending.result()
            assert numbers == [65534, 65535, 0, 1, 2, 3]
