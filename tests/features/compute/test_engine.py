# amaranth: UnusedElaboratable=no
"""LAYERS commands in a node, tested only through the node's ports: hdl/features/compute/engine.py."""

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Opcode, Operation, Status
from hdl.control.registers import register
from hdl.features.compute.engine import ComputeEngine
from hdl.features.compute.layer_list import (
    MULTIPLIED_BIT,
    PADDING,
    Initial,
    Kind,
    Place,
    centroid_layout,
    gemm_layout,
    vector_layout,
)
from hdl.features.compute.memory_access import MemoryAccess
from sim.golden.features.codebook_layers.centroid_product import pack_indices
from sim.golden.features.compute import layer_list
from sim.golden.features.compute.compute import Vector, pack
from sim.golden.features.compute.row_instruction import Rows
from sim.golden.features.compute.row_owners import RowOwners
from sim.streams import STALLS
from tests.features.compute.engine_requests import (
    CONFIG,
    LIST,
    PLACES,
    POP,
    READ_ALL,
    compare,
    exchange,
    fill,
    golden,
    layers,
    node_unit,
    read,
    run_list,
    write,
)
from tests.features.compute.lists import END, WORDS, at, draw_command, draw_list
from tests.features.compute.terms import KINDS, draw
from tests.hdl.host_requests import event, push, request

#: Values of COUNTERS after one training step of the network, on a node without buffer tags.
CYCLES = (2893, 1772, 714)
LISTS = 16


@pytest.fixture(scope="module")
def node():
    return node_unit()


def random_memories(generator, kind="ordinary"):
    return {space: draw(generator, kind, words).astype(np.uint32)
            for space, words in zip(PLACES, WORDS, strict=True)}


def product(a, b, c, *, strides, start=None, gate=None, **fields):
    """Instruction words of a matrix product."""
    members = {"kind": Kind.GEMM, "a": a, "b": b, "c": c, "tile": 2, "row_tiles": 1, "column_tiles": 1, "rounds": 3,
               **{f"stride_{name}": stride for name, stride in zip("abc", strides, strict=True)}, **fields}
    if start is not None:
        members |= {"start": start, "initial": Initial.MATRIX}
    if gate is not None:
        members |= {"gate": gate, "gated": 1, "stride_gate": strides[2]}
    return pack(gemm_layout(), members)


# The network has 8 inputs, 12 hidden units and 5 outputs; gradients have the same addresses as their weights.
INPUTS, HIDDEN, OUTPUTS, ROWS = 8, 12, 5, 6
X, LABELS, LOSS, Y, SCORES, DELTA, HIDDEN_DELTA = (at(Place.ACTIVATIONS, base, relative=1)
                                                   for base in (0, 49, 63, 64, 136, 184, 232))
W1, B1, W2, B2 = (at(Place.WEIGHTS, base) for base in (0, 96, 108, 168))
D1, DB1, D2, DB2 = (at(Place.GRADIENTS, matrix["base"]) for matrix in (W1, B1, W2, B2))
ONES = at(Place.ONES, 0)
FORWARD = [
    product(X, W1, Y, strides=(8, 8, 12), start=B1, relu=1, transpose_b=1, k=INPUTS, n=HIDDEN),
    product(Y, W2, SCORES, strides=(12, 12, 8), start=B2, transpose_b=1, k=HIDDEN, n=OUTPUTS)]
CROSS_ENTROPY = [pack(vector_layout(), {
    "kind": Kind.VECTOR, "columns": OUTPUTS, "source": SCORES, "stride_source": 8, "labels": LABELS,
    "stride_labels": 1, "target": DELTA, "stride_target": 8, "loss": LOSS})]
BACKWARD = [
    product(DELTA, Y, D2, strides=(8, 12, 12), transpose_a=1, m=OUTPUTS, n=HIDDEN),
    product(ONES, DELTA, DB2, strides=(0, 8, 8), m=1, n=OUTPUTS),
    product(DELTA, W2, HIDDEN_DELTA, strides=(8, 12, 12), gate=Y, k=OUTPUTS, n=HIDDEN),
    product(HIDDEN_DELTA, X, D1, strides=(12, 8, 8), transpose_a=1, m=HIDDEN, n=INPUTS),
    product(ONES, HIDDEN_DELTA, DB1, strides=(0, 12, 12), m=1, n=HIDDEN)]


def network(generator, base, lists):
    """Fill memories with examples, weights, labels and instruction lists; return them and the lists' addresses."""
    memories = random_memories(generator)
    memories[Place.ACTIVATIONS][base + 49:base + 49 + ROWS] = generator.integers(OUTPUTS, size=ROWS)
    address, addresses = LIST, []
    for instructions in lists:
        words = np.concatenate([*instructions, END])
        memories[Place.ACTIVATIONS][address:address + len(words)] = words
        addresses.append(address)
        address += -(-len(words) // 32) * 32
    return memories, addresses


@pytest.mark.parametrize("pattern", STALLS)
def test_network(node, pattern):
    """A whole training step in one list gives correct activations, loss, gradients, event and counters."""
    generator = np.random.default_rng(STALLS.index(pattern))
    memories, (address,) = network(generator, 8, [[*FORWARD, *CROSS_ENTROPY, *BACKWARD]])
    ended, (command, gemm, vector) = run_list(node, memories, address, base=8, tag=7, note=f"{pattern=}",
                                              pattern=pattern, cycles=40_000)
    assert (ended.status, ended.detail, ended.cycles) == (EventStatus.OK, 8, command)
    assert (command, gemm, vector) == CYCLES
    words = [*FORWARD, *CROSS_ENTROPY, *BACKWARD, END]
    assert command - gemm - vector == layer_list.command_cycles(
        words, ROWS, lanes=CONFIG.lanes, answer=MemoryAccess.latency, centroids=16, sequences=True)


def test_lists_behind_each_other(node):
    """The training step also works as three commands ordered by flags, with other commands in between."""
    generator = np.random.default_rng(5)
    memories, addresses = network(generator, 0, [FORWARD, CROSS_ENTROPY, BACKWARD])
    copy = push(operation=Operation.COMPUTE, gradient_base=224, state_base=0, length=32, duration=0, tag=9)
    commands = [push(**layers(address, tag=number, wait=number and 1 << number, signal=2 << number))
                for number, address in enumerate(addresses)]
    node.reset()
    responses = exchange(node, *fill(memories), copy, *commands, copy, *[POP] * 5, *READ_ALL)
    memories[Place.GRADIENTS][224:] = memories[Place.GRADIENTS][:32]
    for address in addresses:
        golden.run(memories, base=address, length=ROWS)
    memories[Place.GRADIENTS][224:] = memories[Place.GRADIENTS][:32]
    events = [event(response) for response in responses[8:13]]
    assert [(each.tag, each.status, each.detail) for each in events] == [
        (9, 0, 32), (0, 0, 2), (1, 0, 1), (2, 0, 5), (9, 0, 32)]
    compare(responses[13:], memories)


def test_the_host_reads_and_writes_beside_it(node):
    """Host requests to all memories are answered during a command and do not affect its results."""
    generator = np.random.default_rng(6)
    memories, (address,) = network(generator, 0, [[*FORWARD, *CROSS_ENTROPY, *BACKWARD]])
    words = generator.integers(1 << 32, size=32, dtype=np.uint32)
    beside = [request_ for _ in range(6) for request_ in (
        write(Place.GRADIENTS, 224, words), read(Place.GRADIENTS, 180, 76), write(Place.WEIGHTS, 174, words[:18]),
        read(Place.WEIGHTS), write(Place.ACTIVATIONS, 992, words), read(Place.ACTIVATIONS, 310, 200))]
    node.reset()
    responses = exchange(node, *fill(memories), push(**layers(address)), *beside, POP, *READ_ALL)
    alone = exchange(node, *fill(memories), push(**layers(address)), POP)
    assert {response[1] for response in responses} == {Status.OK}
    assert event(responses[-4]).status == EventStatus.OK
    assert event(responses[-4]).cycles > event(alone[-1]).cycles
    golden.run(memories, base=address, length=ROWS)
    memories[Place.GRADIENTS][224:] = words
    memories[Place.WEIGHTS][174:] = words[:18]
    memories[Place.ACTIVATIONS][992:] = words
    compare(responses[-3:], memories)


def label(generator, memories, command):
    """Store valid labels, including padding, and valid row numbers for the instructions of a list."""
    arguments = {"base": command.list_base, "length": command.length, "offset": command.state_base}
    for job in golden.check(memories, **arguments)[0]:
        if isinstance(job, Vector) and job.labels is not None:
            where = job.labels.index()[:, 0]
            memories[job.labels.place][where] = generator.integers(job.source.columns, size=len(where))
            if generator.random() < 0.3:
                memories[job.labels.place][generator.choice(where)] = PADDING
        elif isinstance(job, Rows) and job.count:
            memories[job.y.place][job.y.index()[:, 0]] = generator.integers(job.count, size=job.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_random_lists(node, kind):
    """Random lists, valid or not, give the expected memories and events; buffer tags persist across lists."""
    seed = 100 + KINDS.index(kind)
    generator = np.random.default_rng(seed)
    memories = random_memories(generator, kind)
    requests, expected, statuses = fill(memories), [], []
    owners = RowOwners(WORDS[2] // CONFIG.lanes)
    node.reset()
    for number in range(LISTS):
        command = draw_command(generator)
        words = np.concatenate(draw_list(generator, 4, command, int(generator.integers(1, 4)), flaws=0.04, bits=0.02))
        words = words[:WORDS[2] - command.list_base]
        before = memories[Place.ACTIVATIONS].copy()
        memories[Place.ACTIVATIONS][command.list_base:command.list_base + len(words)] = words
        if generator.random() < 0.9:
            label(generator, memories, command)
        changed = np.flatnonzero(before != memories[Place.ACTIVATIONS])
        requests += [write(key, 0, memories[key]) for key in (Place.GRADIENTS, Place.WEIGHTS)]
        requests += [write(Place.ACTIVATIONS, run[0], memories[Place.ACTIVATIONS][run])
                     for run in np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if len(run)]
        owners.write(changed // CONFIG.lanes)
        fields = layers(command.list_base, length=command.length, base=command.state_base, tag=number)
        requests += [push(**fields), POP, *READ_ALL]
        outcome = golden.run(memories, base=command.list_base, length=command.length, offset=command.state_base,
                             owners=owners)
        statuses.append(outcome.status)
        expected.append((number, outcome, {key: memory.copy() for key, memory in memories.items()}))
    responses = exchange(node, *requests, cycles=8_000 * LISTS)
    assert {response[1] for response in responses} == {Status.OK}
    answers = [response for response in responses if len(response) > 2]
    events = [n for n, response in enumerate(answers) if len(response) == 6]
    for key, (number, outcome, after) in zip(events, expected, strict=True):
        ended = event(answers[key])
        note = f"{seed=}, list {number}"
        assert (ended.tag, ended.status, ended.detail) == (number, outcome.status, outcome.detail), note
        compare(answers[key + 1:key + 4], after, note)
    assert statuses.count(EventStatus.OK) >= LISTS // 4
    assert {EventStatus.BAD_INSTRUCTION, EventStatus.READ_DEAD} <= set(statuses)


def test_statuses(node):
    """Rejected commands and lists report their status and write nothing; a valid list runs afterwards."""
    generator = np.random.default_rng(7)
    memories, (address, wrong) = network(generator, 0, [FORWARD, [*FORWARD, product(
        X, W1, W2, strides=(8, 8, 8), transpose_b=1, k=INPUTS, n=HIDDEN)]])
    before = {space: memory.copy() for space, memory in memories.items()}
    last = WORDS[2]
    commands = [
        ({"length": 0}, EventStatus.BAD_LENGTH, 1),
        ({"weight_base": address + 16}, EventStatus.BAD_BASE, address + 16),
        ({"weight_base": last + 32}, EventStatus.BAD_BASE, last + 32),
        ({"weight_base": last}, EventStatus.BAD_INSTRUCTION, 0),
        ({"length": 4096}, EventStatus.BAD_INSTRUCTION, 0), ({"length": 1 << 31}, EventStatus.BAD_INSTRUCTION, 0),
        ({"weight_base": wrong}, EventStatus.BAD_INSTRUCTION, 2), ({"state_base": 2}, EventStatus.BAD_INSTRUCTION, 0),
        ({"state_base": 1024 - 48}, EventStatus.BAD_INSTRUCTION, 0),
        ({"state_base": (1 << 32) - 4}, EventStatus.BAD_INSTRUCTION, 0),
        ({"operation": max(Operation) + 1}, EventStatus.UNKNOWN_OPERATION, max(Operation) + 1),
    ]
    node.reset()
    requests = fill(memories)
    for fields, _, _ in commands:
        requests += [push(**{**layers(address), **fields}), POP]
    responses = exchange(node, *requests, *READ_ALL, push(**layers(address)), POP, *READ_ALL)
    for (_, status, detail), response in zip(commands, responses[4::2], strict=False):
        assert (event(response).status, event(response).detail) == (status, detail)
    compare(responses[-8:-5], before)
    assert event(responses[-4]).status == EventStatus.OK
    golden.run(memories, base=address, length=ROWS)
    compare(responses[-3:], memories)


def test_a_wrong_label(node):
    """An invalid label is detected at run time: the list runs up to that instruction, and the event reports it."""
    generator = np.random.default_rng(8)
    memories, (address,) = network(generator, 0, [[*FORWARD, *CROSS_ENTROPY, *BACKWARD]])
    memories[Place.ACTIVATIONS][49 + 3] = OUTPUTS
    ended, _ = run_list(node, memories, address)
    assert (ended.status, ended.detail) == (EventStatus.BAD_INSTRUCTION, 2)


@pytest.mark.parametrize("delay", [1, 4, 9, 20])
def test_link_reset(node, delay):
    """A link reset ends a command at any time, and the next command runs normally."""
    generator = np.random.default_rng(delay)
    memories, (address,) = network(generator, 0, [[*FORWARD, *CROSS_ENTROPY, *BACKWARD]])
    control = register("CONTROL").address
    pause = [request(Opcode.PING, 32, *range(32))] * delay
    node.reset()
    first_command, second_command = (push(**layers(address, tag=tag)) for tag in (1, 2))
    responses = exchange(
        node, *fill(memories), first_command, *pause, request(Opcode.WRITE_REGISTER, 1, control, 1), POP,
        request(Opcode.WRITE_REGISTER, 1, control, 0), *fill(memories), second_command, POP, *READ_ALL)
    first, second = event(responses[5 + delay]), event(responses[-4])
    assert (first.tag, first.status) == (1, EventStatus.LINK_RESET)
    assert (second.tag, second.status, second.detail) == (2, EventStatus.OK, 8)
    golden.run(memories, base=address, length=ROWS)
    compare(responses[-3:], memories)


@pytest.mark.parametrize("cycles", [1_800, 2_000, 2_400, 3_000])
def test_reset_in_the_middle(node, cycles):
    generator = np.random.default_rng(cycles)
    memories, (address,) = network(generator, 0, [[*FORWARD, *CROSS_ENTROPY, *BACKWARD]])
    node.reset()
    assert len(exchange(node, *fill(memories), push(**layers(address)), POP, *READ_ALL, cycles=cycles)) == 4
    ended, _ = run_list(node, memories, address)
    assert ended.status == EventStatus.OK


def shared_layer(generator):
    """Memories, centroid indices and instructions for a layer with 12 inputs, 8 outputs and exact sums.

    One list uses the indices, the other the matrix that they represent. Each list computes the outputs, the gated
    input gradients, and the gradients of the centroids or of the weights.
    """
    memories = {space: (generator.integers(-64, 64, words) / 8).astype(np.float32).view(np.uint32)
                for space, words in zip(PLACES, WORDS, strict=True)}
    indices = generator.integers(16, size=(8, 12))
    activations, weights = memories[Place.ACTIVATIONS], memories[Place.WEIGHTS]
    forward, backward = (pack_indices(table, CONFIG.lanes).ravel() for table in (indices, indices.T))
    activations[384:384 + len(forward)], activations[416:416 + len(backward)] = forward, backward
    weights[64:160] = weights[:16][indices].ravel()
    x, upstream, matrix, bias = (at(Place.ACTIVATIONS, 0), at(Place.ACTIVATIONS, 96), at(Place.WEIGHTS, 64),
                                 at(Place.WEIGHTS, 16))
    y, inward, gradient = (at(space, base) for space, base in (
        (Place.ACTIVATIONS, 160), (Place.ACTIVATIONS, 224), (Place.GRADIENTS, 0)))

    def centroid(**fields):
        return pack(centroid_layout(), {"kind": Kind.CENTROID, "table": at(Place.WEIGHTS, 0), **fields})

    by_index = [
        centroid(columns=12, outputs=8, x=x, stride_x=12, indices=at(Place.ACTIVATIONS, 384), stride_indices=8,
                 start=bias, initial=1, relu=1, target=y, stride_target=8),
        centroid(columns=8, outputs=12, x=upstream, stride_x=8, indices=at(Place.ACTIVATIONS, 416), stride_indices=4,
                 target=inward, stride_target=12, gate=x, gated=1, stride_gate=12),
        centroid(columns=12, outputs=8, x=x, stride_x=12, indices=at(Place.ACTIVATIONS, 384), stride_indices=8,
                 start=upstream, stride_start=8, target=gradient, gradient=1)]
    dense = [
        product(x, matrix, y, strides=(12, 12, 8), start=bias, relu=1, transpose_b=1, k=12, n=8),
        product(upstream, matrix, inward, strides=(8, 12, 12), gate=x, k=8, n=12),
        product(upstream, x, at(Place.GRADIENTS, 96), strides=(8, 12, 12), transpose_a=1, m=8, n=12)]
    return memories, indices, by_index, dense


def test_centroids(node):
    """A layer with centroid indices matches dense products, with the stated number of multiplications."""
    examples = 8
    for seed in range(3):
        memories, indices, by_index, dense = shared_layer(np.random.default_rng(seed))
        results = []
        for instructions in (by_index, dense):
            words = np.concatenate([*instructions, END])
            local = {space: memory.copy() for space, memory in memories.items()}
            local[Place.ACTIVATIONS][LIST:LIST + len(words)] = words
            ended, (command, products, functions) = run_list(node, local, LIST, length=examples, note=f"{seed=}")
            assert (ended.status, functions) == (EventStatus.OK, 0)
            assert command - products == layer_list.command_cycles(
                [*instructions, END], examples, lanes=CONFIG.lanes, answer=MemoryAccess.latency, centroids=16)
            results.append((local, ended.detail >> MULTIPLIED_BIT))
        (shared, multiplied), (expanded, nothing) = results
        # Per example: k multiplications for each output, each input gradient and each output gradient.
        assert multiplied * CONFIG.lanes == 16 * examples * (8 + 12 + 8)
        assert nothing == 0
        np.testing.assert_array_equal(shared[Place.ACTIVATIONS][160:320], expanded[Place.ACTIVATIONS][160:320])
        weights = expanded[Place.GRADIENTS][96:192].view(np.float32).reshape(indices.shape)
        totals = [weights[indices == number].sum(dtype=np.float64) for number in range(16)]
        np.testing.assert_array_equal(shared[Place.GRADIENTS][:16].view(np.float32), totals)


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"^Node must have rows of multiply-accumulate units, not NodeConfig\(.*\)$"):
        ComputeEngine(config=NodeConfig())
