# amaranth: UnusedElaboratable=no
"""int16 node, tested through its host ports against the golden model: hdl/features/int16/."""

import dataclasses

import numpy as np
import pytest

from hdl.board import BOARDS, node_of
from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Opcode, Operation, Status
from hdl.control.registers import IDENTIFIER, REGISTERS, register
from hdl.features.int16.engine import update_cycles
from hdl.features.int16.node import Int16Node
from hdl.masking.mask import KINDS
from hdl.node import Node
from sim.golden import masking
from sim.golden.features.int16 import int16_node as reduced
from sim.verilated.vectors import Unit
from tests.features.int16.nodes import (
    CONFIG,
    COUNTERS,
    POP,
    READ_ALL,
    READ_COUNTERS,
    SIZES,
    Masked,
    Model,
    check_session,
    elements,
    exchange,
    listed,
    read,
    read_register,
    small_jobs,
    write,
    write_register,
)
from tests.hdl.host_requests import event, push, request
from tests.hdl.masking import masks

PATTERNS = ["none", "geometric", "freeze", "alternating"]


@pytest.fixture(scope="module")
def node():
    return Unit(Int16Node(CONFIG))


@pytest.fixture(scope="module")
def least():
    return Unit(Int16Node(CONFIG.replace(masking=False, sparsify=False)))


def test_errors():
    with pytest.raises(ValueError, match=r"^Configuration of an int16 node must be an Int16Config, not NodeConfig\("):
        Int16Node(NodeConfig())
    with pytest.raises(ValueError, match=r"^Configuration of a full node must be a NodeConfig or a ServerConfig, not "
                                         r"Int16Config\("):
        Node(CONFIG)


@pytest.mark.parametrize(("config", "kind"), [(CONFIG, Int16Node), (NodeConfig(), Node)])
def test_nodes_of_either_kind(config, kind):
    node = node_of(config)
    assert type(node) is kind
    assert node.config == config
    assert node.signature.members.keys() == {"host_i", "host_o", "ring_i", "ring_o"}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_commands(node, pattern, seed):
    check_session(node, seed, pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("alternative", [0, 0xFFFF8000])
def test_mask(node, pattern, alternative):
    """MASK yields the expected values, event, cycles and counters, and changes no element outside its range."""
    case = Masked(small_jobs(np.random.default_rng(11), 9, 320), 4)
    case.model.registers["MASK_ALTERNATIVE"] = alternative
    node.reset()
    responses = exchange(node, write_register("MASK_ALTERNATIVE", alternative), *case.fill,
                         push(**case.options, tag=7, rank=3, size=0), POP, *READ_COUNTERS, *READ_ALL, pattern=pattern)
    expected = case.model.run(**case.options, tag=7)
    assert expected.status == EventStatus.OK
    assert 0 < expected.detail < case.options["length"]
    assert event(responses[4]) == expected
    assert [response[2] for response in responses[5:9]] == [case.model.counters[name] for name in COUNTERS]
    case.check(responses[9:])


@pytest.mark.parametrize("kinds", range(64))
def test_mask_of_every_set_of_kinds(node, kinds):
    generator = np.random.default_rng(kinds)
    enables = {kind: bool(kinds >> n & 1) for n, kind in enumerate(KINDS[:-1])}
    jobs = [masking.Job(rows=rows, columns=columns, count=count, mask=masks.mask(generator, enables, rows, columns))
            for rows, columns, count in ((7, 9, 2), (1, 30, 1), (13, 4, 1), (1, 1, 3))]
    assert Masked(jobs, kinds).run(node).status == EventStatus.OK


@pytest.mark.parametrize("wrong", [
    {"rows": 0}, {"columns": 0}, {"count": 0}, {"rows": 4096}, {"columns": 4096}, {"count": 3}, {"count": 65535},
    {"rows": 4095, "columns": 4095, "count": 65535}, {"elements": 0}, {"elements": 23}, {"elements": 25},
    {"elements": 24 + (1 << 16)}, {"elements": 1 << 31}, {"kinds": 64}, {"kinds": 127},
    {"diagonal": 4096}, {"diagonal": -4097 & 0xFFFFFFFF}, {"diagonal": 0x10000}, {"diagonal": 0xFFFEFFFF},
    {"diagonal": 0x8000}, {"diagonal": 0xFFFF0000}, {"length_rows": 4096}, {"length_columns": 0x8000},
    {"first_row": 4096}, {"end_row": 4096}, {"first_column": 4096}, {"end_column": 65535}, {"width": 4096},
])
def test_wrong_jobs(node, wrong):
    """MASK runs all jobs before an invalid one and then reports an error; the next command works."""
    jobs = [masking.Job(rows=3, columns=5, mask=masking.Mask(triangle=True)),
            masking.Job(rows=4, columns=3, count=2, mask=masking.Mask(triangle_inverse=True, diagonal=-4096))]
    case = Masked(jobs, 3, **wrong)
    node.reset()
    again = {**case.options, "length": 15}
    responses = exchange(node, *case.fill, push(**case.options), POP, *READ_ALL, push(**again), POP, *READ_ALL)
    expected = case.model.run(**case.options)
    assert (expected.status, expected.detail) == (EventStatus.BAD_MASK, 1)
    ended = event(responses[3])
    assert dataclasses.replace(ended, cycles=0) == expected
    case.check(responses[4:6])
    assert event(responses[7]) == case.model.run(**again)
    case.check(responses[8:])


@pytest.mark.parametrize(("options", "status", "detail"), [
    ({"length": 40}, EventStatus.BAD_MASK, 2), ({"length": 38}, EventStatus.BAD_MASK, 1),
    ({"weight_base": 800}, EventStatus.BAD_MASK, 0), ({"weight_base": 768}, EventStatus.BAD_MASK, 0),
    ({"weight_base": 832}, EventStatus.BAD_BASE, 832), ({"weight_base": 8}, EventStatus.BAD_BASE, 8),
    ({"state_base": 832}, EventStatus.BAD_BASE, 832), ({"state_base": 100}, EventStatus.BAD_BASE, 100),
    ({"gradient_base": 384}, EventStatus.BAD_BASE, 384), ({"gradient_base": 33}, EventStatus.BAD_BASE, 33),
    ({"gradient_base": 352}, EventStatus.BAD_LENGTH, 0), ({"length": 321}, EventStatus.BAD_LENGTH, 320),
    ({"length": 0}, EventStatus.OK, 0),
])
def test_lists(node, options, status, detail):
    """Lists of mask jobs at any address and of any length give the expected status.

    Each list is followed by zeros or by the end of memory.
    """
    jobs = [masking.Job(rows=3, columns=5, mask=masking.Mask(triangle=True)),
            masking.Job(rows=4, columns=3, count=2, mask=masking.Mask(band=True, width=1))]
    case = Masked(jobs, 3)
    memory = case.model.memories[1]
    memory[128:160] = memory[768:] = 0
    case.options |= options
    node.reset()
    responses = exchange(node, write(1, 0, memory), push(**case.options, rank=9, port=1), POP)
    expected = case.model.run(**case.options)
    assert (expected.status, expected.detail) == (status, detail)
    assert dataclasses.replace(event(responses[2]), cycles=0) == dataclasses.replace(expected, cycles=0)


def test_list_that_fills_the_memory(node):
    """A list of mask jobs may end at the end of memory; if the length is one more, the missing job is an error."""
    jobs = [masking.Job(rows=2, columns=3, mask=masking.Mask(triangle=True))] * 4
    case = Masked(jobs, 8)
    case.model.memories[1][736:] = listed(jobs)
    case.options["weight_base"] = 736
    node.reset()
    fill = [write(space, 0, memory) for space, memory in enumerate(case.model.memories)]
    longer = case.options | {"length": 25}
    responses = exchange(node, *fill, push(**case.options), POP, push(**longer), POP, *READ_ALL)
    for response, length, status in ((responses[3], 24, EventStatus.OK), (responses[5], 25, EventStatus.BAD_MASK)):
        expected = case.model.run(**case.options | {"length": length})
        assert expected.status == status
        assert dataclasses.replace(event(response), cycles=0) == dataclasses.replace(expected, cycles=0)
    assert event(responses[5]).detail == 4
    case.check(responses[6:])


# Behaviour shared with a full node, and functions of a full node that the int16 node lacks.


def test_operations_that_are_left_out(least):
    least.reset()
    operations = [operation for operation in range(256) if operation > 1]
    responses = exchange(least, *(packet for operation in operations
                                  for packet in (push(operation=operation, length=7, size=0), POP)),
                         push(operation=Operation.FUSED_UPDATE, length=7), POP, push(operation=0, size=0), POP,
                         cycles=40_000)
    ended = [event(response) for response in responses[1::2]]
    assert [(each.status, each.detail) for each in ended[:-2]] == [
        (EventStatus.UNKNOWN_OPERATION, operation) for operation in operations]
    assert [(each.status, each.weight_version) for each in ended[-2:]] == [(EventStatus.OK, 1)] * 2


def test_registers(node):
    """Constants and settings are readable; missing registers read as zero, even after writes."""
    node.reset()
    settings = [entry for entry in REGISTERS if entry.access.writable and entry.name not in ("CONTROL", "FLAGS")]
    present = {"OPTIMIZER": 0, "GRADIENT_SCALE": 1 << 16, "LEARNING_RATE": 0, "MASK_ALTERNATIVE": 1 << 15,
               "MASK_THRESHOLD": 0, "TIMEOUT": 1 << 20}
    everything = request(Opcode.READ_REGISTER, len(REGISTERS), 0)
    before, *written, after, clear, cleared = exchange(
        node, everything, *(write_register(entry.name, 0x12345678) for entry in settings), everything,
        write_register("CONTROL", 2), everything)
    constants = {"ID": IDENTIFIER, "CONFIGURATION_HASH": CONFIG.hash, "LANES": 1, "NODES_MAX": 1,
                 "GRADIENT_WORDS": SIZES[0], "WEIGHT_WORDS": SIZES[1], "STATE_WORDS": CONFIG.memories.state,
                 "STATE_PLANES": 0, "SEGMENT_ELEMENTS": CONFIG.segment, "QUEUES": 1}
    for response, values in ((before, present), (after, dict.fromkeys(present, 0x12345678) | {"OPTIMIZER": 0x38})):
        contents = dict(zip((entry.name for entry in REGISTERS), response[2:], strict=True))
        assert contents.pop("CYCLES") > 0
        assert contents == dict.fromkeys(contents, 0) | constants | values
    assert [response[1:] for response in [*written, clear]] == [[Status.OK, 1]] * (len(settings) + 1)
    assert cleared[2 + register("CYCLES").address] < after[2 + register("CYCLES").address]


@pytest.mark.parametrize("size", SIZES)
def test_ranges(node, size):
    """Spaces and ranges are checked as in a full node; written words are truncated and reads sign-extended."""
    node.reset()
    space = SIZES.index(size)
    base = space << 28
    responses = exchange(
        node, request(Opcode.WRITE_MEMORY, 3, base | size - 3, 0x12348000, 0xFFFF7FFF, 0x1FFFF),
        request(Opcode.READ_MEMORY, 3, base | size - 3),
        request(Opcode.READ_MEMORY, 3, base | size - 2), request(Opcode.WRITE_MEMORY, 1, base | size, 1),
        request(Opcode.READ_MEMORY, 1, 2 << 28), request(Opcode.WRITE_MEMORY, 2, base | 8, 5),
        request(Opcode.READ_MEMORY, 1, base | 8))
    assert [response[1] for response in responses] == [
        Status.OK, Status.OK, *[Status.BAD_ADDRESS] * 3, Status.BAD_LENGTH, Status.OK]
    assert responses[1][2:] == [0xFFFF8000, 0x7FFF, 0xFFFFFFFF]
    assert [response[2:] for response in responses[3:]] == [[0], [], [1], [5]]


def test_flags(node):
    """Commands wait for, consume and set flags, and can time out; the optimizer rule is checked after the wait."""
    node.reset()
    flags = register("FLAGS").address
    responses = exchange(
        node, push(operation=0, wait=3, signal=4, tag=1), read_register("STATUS"),
        request(Opcode.WRITE_REGISTER, 1, flags, 1), request(Opcode.READ_REGISTER, 1, flags),
        request(Opcode.WRITE_REGISTER, 1, flags, 2), POP, request(Opcode.READ_REGISTER, 1, flags),
        push(operation=1, wait=8, tag=2), write_register("OPTIMIZER", 2), request(Opcode.WRITE_REGISTER, 1, flags, 8),
        POP, request(Opcode.READ_REGISTER, 1, flags),
        write_register("TIMEOUT", 100), push(operation=0, wait=0x8018, signal=1, tag=3), POP,
        read_register("LAST_ERROR"), request(Opcode.READ_REGISTER, 1, flags))
    values = [response[2:] for response in responses]
    assert values[1][0] & 3 == 2  # the command waits for its flags
    assert values[1][0] >> 16 == 1
    assert [values[3], values[6], values[11], values[16]] == [[1], [4], [12], [12]]
    ended = [event(responses[n]) for n in (5, 10, 14)]
    assert [(each.tag, each.status, each.detail) for each in ended] == [
        (1, EventStatus.OK, 0), (2, EventStatus.BAD_RULE, 2), (3, EventStatus.WAIT_TIMEOUT, 0x8010)]
    assert ended[0].cycles == 1
    assert ended[2].cycles == 100
    assert values[15] == [3 | EventStatus.WAIT_TIMEOUT << 16]


def test_link_reset(node):
    """A link reset ends the running command at its next gradient and discards the waiting commands."""
    node.reset()
    gradients = np.full(352, 5)
    responses = exchange(
        node, write(0, 0, gradients), push(operation=1, length=352, tag=1, signal=1),
        push(operation=0, tag=2), push(operation=0, tag=3, wait=1), write_register("CONTROL", 1), POP, POP, POP,
        write_register("CONTROL", 0), push(operation=1, length=352, tag=4), POP)
    ended = [event(response) for response in [*responses[5:8], responses[10]]]
    assert [(each.tag, each.status, each.detail, each.weight_version) for each in ended] == [
        (1, EventStatus.LINK_RESET, 0, 0), (2, EventStatus.LINK_RESET, 0, 0), (3, EventStatus.LINK_RESET, 0, 0),
        (4, EventStatus.OK, 0, 1)]
    assert ended[0].cycles < update_cycles(352, 352) == ended[3].cycles


def test_full_queues(node):
    """Nothing is lost with a command running and both queues full (eight commands, eight events)."""
    node.reset()
    flags = register("FLAGS").address
    blocked = [push(operation=0, wait=1, tag=tag) for tag in range(9)]
    open_ = request(Opcode.WRITE_REGISTER, 1, flags, 1)
    responses = exchange(node, *blocked, read_register("STATUS"), *[open_] * 8,
                         *(push(operation=0, tag=10 + n) for n in range(9)), read_register("STATUS"),
                         *[POP] * 17, request(Opcode.POP_EVENT, 4, 100))
    assert [response[1] for response in responses[:9]] == [Status.OK] * 8 + [Status.QUEUE_FULL]
    assert responses[9][2] >> 16 == 8
    pushed = [response[1] for response in responses[18:27]]
    assert pushed == [Status.OK] * 9
    assert responses[27][2] >> 24 == 8
    tags = [event(response).tag for response in responses[28:45]]
    assert tags == [*range(8), *range(10, 19)]
    assert responses[45][1] == Status.EMPTY


@pytest.mark.parametrize("words", [1, 2, 3, 200])
def test_reset_in_the_middle_of_a_packet(node, words):
    generator = np.random.default_rng(words)
    gradients = elements(generator, 320)
    node.reset()
    exchange(node, write_register("LEARNING_RATE", 5), write(0, 0, gradients)[:words], cycles=1500)
    node.reset()
    identifier, rate = exchange(node, read_register("ID"), read_register("LEARNING_RATE"))
    assert identifier[1:] == [Status.OK, IDENTIFIER]
    assert rate[1:] == [Status.OK, 0]


@pytest.mark.parametrize("operation", [Operation.FUSED_UPDATE, Operation.MASK, Operation.SPARSIFY])
@pytest.mark.parametrize("cycles", [0, 1, 40, 41, 42, 43, 44, 300])
def test_reset_in_the_middle_of_a_command(node, operation, cycles):
    """After a reset at any point of a command, the node is ready for the next command."""
    case = Masked(small_jobs(np.random.default_rng(12), 6, 320), 4)
    settings = write_register("LEARNING_RATE", 0x8000), write_register("MASK_THRESHOLD", 900)
    node.reset()
    assert len(exchange(node, *settings, *case.fill, push(**case.options | {"operation": operation}),
                        cycles=2800 + cycles)) == 5
    case.model.registers |= {"LEARNING_RATE": 0x8000, "MASK_THRESHOLD": 900}
    assert case.run(node, *settings, operation=operation).status == EventStatus.OK


def test_settings_are_those_of_the_start(node):
    """Writing settings while a command runs does not affect that command."""
    case = Masked(small_jobs(np.random.default_rng(12), 6, 320), 4)
    case.options["length"] = sum(job.elements for job in small_jobs(np.random.default_rng(12), 6, 320))
    names = "GRADIENT_SCALE", "LEARNING_RATE", "MASK_THRESHOLD", "MASK_ALTERNATIVE"
    commands = [case.options | {"operation": operation} for operation in (
        Operation.FUSED_UPDATE, Operation.SPARSIFY, Operation.MASK)]
    node.reset()
    requests = list(case.fill)
    expected = []
    memories = [case.model.memories[0].copy(), case.model.memories[1].copy()]
    for n, command in enumerate(commands):
        # Each command starts from the original memories.
        for model_memory, memory in zip(case.model.memories, memories, strict=True):
            model_memory[:] = memory
        values = [0x1_0000 + 77 * n, 0x8000 + n, 1000 + n, 3 + n]
        case.model.registers |= dict(zip(names, values, strict=True))
        requests += [*(write(space, 0, memory) for space, memory in enumerate(memories)),
                     *(write_register(*setting) for setting in zip(names, values, strict=True)), push(**command),
                     *(write_register(name, 0xFFFF) for name in names), POP, *READ_ALL]
        expected.append((case.model.run(**command), [memory.copy() for memory in case.model.memories]))
    responses = exchange(node, *requests, cycles=60_000)[2:]
    for n, (ended, held) in enumerate(expected):
        part = responses[14 * n:14 * (n + 1)]
        assert event(part[11]) == ended
        for response, memory in zip(part[12:], held, strict=True):
            assert response[2:] == reduced.to_words(memory).tolist()


@pytest.mark.parametrize("config", [
    BOARDS["icebreaker"].node, CONFIG.replace(memories={"gradient": 32, "weight": 32})])
def test_whole_memories(config):
    """Commands can span the whole memory, in nodes with the largest and with the smallest memories."""
    generator = np.random.default_rng(5)
    sizes = config.memory_map.words
    model = Model(sizes)
    whole = min(sizes)
    for memory in model.memories:
        memory[:] = elements(generator, whole)
    model.registers |= {"LEARNING_RATE": 0x3456, "MASK_THRESHOLD": 700}
    job = masking.Job(rows=whole // 32, columns=16, count=2, mask=masking.Mask(triangle=True, diagonal=whole // 64))
    requests = [write_register("LEARNING_RATE", 0x3456), write_register("MASK_THRESHOLD", 700),
                *(write(space, 0, memory) for space, memory in enumerate(model.memories))]
    node = Unit(Int16Node(config))
    node.reset()
    expected = []
    for operation in (Operation.FUSED_UPDATE, Operation.SPARSIFY, Operation.MASK):
        command = {"operation": operation, "length": whole}
        if operation == Operation.MASK:
            command |= {"weight_base": whole - 32}
            model.memories[1][-32:] = 0
            model.memories[1][-32:-16] = listed([job])
            requests.append(write(1, whole - 32, model.memories[1][-32:]))
        requests += [push(**command), request(Opcode.POP_EVENT, 4, 1_000_000)]
        expected.append(model.run(**command))
    requests += [read(space, 0, whole) for space in (0, 1)]
    responses = exchange(node, *requests, cycles=60 * whole + 3000)
    assert [each.status for each in expected] == [EventStatus.OK] * 3
    assert [event(responses[n]) for n in (5, 7, 10)] == expected
    for response, memory in zip(responses[11:], model.memories, strict=True):
        assert response[2:] == reduced.to_words(memory).tolist()
