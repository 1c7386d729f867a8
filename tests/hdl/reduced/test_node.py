# amaranth: UnusedElaboratable=no
"""The reduced node by its host's ports alone, against the golden model: hdl/reduced/."""

import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Opcode, Operation, Status, header_layout
from hdl.control.registers import IDENTIFIER, REGISTERS, register
from hdl.masking.mask import KINDS
from hdl.reduced.engine import sparsify_cycles, update_cycles
from hdl.reduced.masking import mask_cycles
from hdl.reduced.node import ReducedNode
from hdl.stream import word_layout
from host.device import Command, Event
from sim.golden import masking, reduced
from sim.payload import to_int
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack, unpack
from tests.hdl.masking import masks

# No power of two, so that a range is compared in earnest.
CONFIG = NodeConfig(element="int16", lanes=1, nodes_max=1, state_planes=0, gradient_words=352, weight_words=800)
SIZES = CONFIG.spaces
PATTERNS = ["none", "geometric", "freeze", "alternating"]
COUNTERS = "COMPRESSED_WORDS", "ELEMENTS_ENCODED", "COMMAND_CYCLES", "ELEMENTS_MASKED"


def request(opcode, count, *words):
    header = to_int(header_layout(), {"opcode": opcode, "tag": 9, "count": count})
    return [header, *(int(word) for word in words)]


def write_register(name, value):
    return request(Opcode.WRITE_REGISTER, 1, register(name).address, value)


def read_register(name):
    return request(Opcode.READ_REGISTER, 1, register(name).address)


def write(space, address, elements):
    return request(Opcode.WRITE_MEMORY, len(elements), space << 28 | address, *reduced.to_words(elements))


def read(space, address, count):
    return request(Opcode.READ_MEMORY, count, space << 28 | address)


def push(**fields):
    return request(Opcode.PUSH_COMMAND, 8, *Command(**fields).words())


POP = request(Opcode.POP_EVENT, 4, 100_000)
READ_ALL = [read(space, 0, size) for space, size in enumerate(SIZES)]
READ_COUNTERS = [read_register(name) for name in COUNTERS]


def exchange(node, *requests, pattern="none", seed=0, cycles=40_000):
    """The responses to some requests, sent one behind the other."""
    words = [word for packet in requests for word in packet]
    last = [n == len(packet) - 1 for packet in requests for n in range(len(packet))]
    trace = node.lockstep(
        sources={"host_i": Feed(pack(word_layout(), {"data": np.array(words, np.uint32), "last": np.array(last)}),
                                willing=stall_array(pattern, cycles, seed=seed))},
        sinks={"host_o": stall_array(pattern, cycles, seed=seed + 1)})
    taken = np.flatnonzero(trace["host_o__valid"].astype(bool) & trace["host_o__ready"].astype(bool))
    beats = unpack(word_layout(), trace["host_o__payload"][taken])
    ends = np.flatnonzero(beats["last"]) + 1
    return [response.tolist() for response in np.split(beats["data"], ends)[:-1]]


def event(response):
    return Event.from_words(np.array(response[2:], np.uint32))


def small_jobs(generator, count, most):
    """Jobs without external masks, of so many elements at most altogether."""
    while True:
        jobs = [dataclasses.replace(job, mask=dataclasses.replace(job.mask, external=False))
                for job in masks.jobs(generator, count, limit=8)]
        if sum(job.elements for job in jobs) <= most:
            return jobs


def listed(jobs, **wrong):
    """Jobs as elements of the weight memory, with some fields of the last one wrong."""
    words = [masks.job_words(job, 1, **(wrong if n == len(jobs) - 1 else {})) for n, job in enumerate(jobs)]
    return reduced.from_words(np.concatenate(words).view(np.uint16))


def elements(generator, count, zeros=0.5):
    """Random elements, large, small and at the ends of their range, so many of them zero."""
    result = generator.integers(-32768, 32768, count) >> generator.integers(0, 16, count)
    result[generator.random(count) < 0.05] = -32768
    result[generator.random(count) < zeros] = 0
    return result


class Model:
    """What a node should hold, and say."""

    def __init__(self):
        self.memories = [np.zeros(size, np.int64) for size in SIZES]
        self.registers = {"GRADIENT_SCALE": 1 << 16, "LEARNING_RATE": 0, "MASK_THRESHOLD": 0,
                          "MASK_ALTERNATIVE": 1 << 15, "OPTIMIZER": 0}
        self.version = 0
        self.counters = dict.fromkeys(COUNTERS, 0)

    def run(self, *, operation, tag=0, gradient_base=0, weight_base=0, state_base=0, length=0, rank=0, size=1, port=0,
            root=0):
        """The event of a command."""
        bases = gradient_base, weight_base, state_base
        verdict = self._check(operation, bases, length, (rank, size, port, root))
        cycles = 0
        if verdict is None:
            verdict, cycles = self._carry_out(operation, gradient_base, weight_base, length)
            self.counters["COMMAND_CYCLES"] += cycles
        status, detail = verdict
        return Event(tag=tag, status=status, flags=0, detail=detail, cycles=cycles, weight_version=self.version)

    def _check(self, operation, bases, length, place):
        if operation == Operation.QUIESCE:
            return None
        if operation not in (Operation.FUSED_UPDATE, Operation.MASK, Operation.SPARSIFY):
            return EventStatus.UNKNOWN_OPERATION, operation
        if operation == Operation.FUSED_UPDATE:
            if self.registers["OPTIMIZER"] & 3:
                return EventStatus.BAD_RULE, self.registers["OPTIMIZER"] & 3
            if place[:3] != (0, 1, 0):
                return EventStatus.BAD_RANK, sum(part << 8 * n for n, part in enumerate(place))
        lists = operation == Operation.MASK
        for n, base in enumerate(bases if lists else bases[:2]):
            capacity = SIZES[min(n, 1)]
            if base % 32 or base > capacity:
                return EventStatus.BAD_BASE, base
            if length > capacity - base and not (lists and n):
                return EventStatus.BAD_LENGTH, capacity - base
        return None

    def _carry_out(self, operation, gradient_base, weight_base, length):
        gradients = self.memories[0][gradient_base:gradient_base + length]
        second = self.memories[1][weight_base:weight_base + length]
        detail, cycles = 0, 1
        if operation == Operation.FUSED_UPDATE:
            after = reduced.update(gradients, second, gradient_scale=self.registers["GRADIENT_SCALE"] & 0x3FFFF,
                                   learning_rate=self.registers["LEARNING_RATE"] & 0x3FFFF)
            cycles = update_cycles(length, np.count_nonzero(gradients))
            second[:] = after.weights
            self.version += 1
            self.counters["COMPRESSED_WORDS"] += after.words
            self.counters["ELEMENTS_ENCODED"] += length
        elif operation == Operation.SPARSIFY:
            after = reduced.sparsify(gradients, second, self.registers["MASK_THRESHOLD"])
            gradients[:], second[:] = after.gradients, after.errors
            detail, cycles = after.dropped, sparsify_cycles(length)
            self.counters["ELEMENTS_MASKED"] += after.dropped
        elif operation == Operation.MASK:
            after = reduced.mask(gradients, self.memories[1][weight_base:], self.registers["MASK_ALTERNATIVE"])
            gradients[:] = after.elements
            self.counters["ELEMENTS_MASKED"] += after.replaced
            detail = after.replaced
            # Shapes of jobs that were carried out, as they are in memory.
            taken, place, cycles = 0, weight_base, []
            while after.bad is None and taken < length:
                count, rows, columns = (int(value) for value in self.memories[1][place + 1:place + 4])
                cycles.append((rows, columns, count))
                taken += rows * columns * count
                place += reduced.JOB_ELEMENTS
            cycles = mask_cycles(cycles)
            if after.bad is not None:
                return (EventStatus.BAD_MASK, after.bad), 0
        return (EventStatus.OK, detail), int(cycles)


@pytest.fixture(scope="module")
def node():
    return Unit(ReducedNode(CONFIG))


@pytest.fixture(scope="module")
def least():
    return Unit(ReducedNode(dataclasses.replace(CONFIG, masking=False, error_feedback=False)))


def test_errors():
    full = dataclasses.replace(CONFIG, element="fp32")
    with pytest.raises(ValueError, match=r"^Element of a reduced node must be int16, not 'fp32'$"):
        ReducedNode(full)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_commands(node, pattern, seed):
    """Good and bad commands one behind the other, settings in between, and the host elsewhere in the memories."""
    generator = np.random.default_rng(seed)
    model = Model()
    requests, expected = [], []

    def ask(packet, *payload):
        requests.append(packet)
        expected.append(payload)

    for space, size in enumerate(SIZES):
        model.memories[space][:] = elements(generator, size)
        ask(write(space, 0, model.memories[space]), size)
    for tag in range(14):
        for name, value in (("GRADIENT_SCALE", generator.integers(0, 1 << 18)),
                            ("LEARNING_RATE", generator.integers(0, 1 << 32)),
                            ("MASK_THRESHOLD", generator.integers(0, 1 << 16) >> generator.integers(0, 14)),
                            ("OPTIMIZER", generator.choice([0, 0, 0, 0, 4, 1, 2]))):
            model.registers[name] = int(value)
            ask(write_register(name, value), 1)
        # The upper part of each memory is the host's; a base beyond it is an error anyway.
        length = int(generator.choice(
            [0, 1, 15, 16, 17, 31, 32, 33, 64, 65, generator.integers(0, 161), 400, 1 << 31]))
        command = {
            "operation": int(generator.choice([1, 1, 1, 1, 7, 7, 7, 6, 6, 0, 2, 8])), "tag": tag, "length": length,
            "gradient_base": int(generator.choice([0, 32, 64, 64, 96, 352, 384, 9])),
            "weight_base": int(generator.choice([0, 32, 64, 320, 800, 832, 1 << 31, 33])),
            "state_base": int(generator.choice([0, 0, 0, 5])), "rank": int(generator.random() < 0.1),
            "size": int(generator.choice([1, 1, 1, 1, 1, 0, 2])), "port": int(generator.random() < 0.1), "root": 3,
        }
        if command["gradient_base"] <= 96:
            command["length"] = length = length if length >= 400 else min(length, 160)
        if command["operation"] == Operation.MASK:
            # Not where SPARSIFY and updates are: with zeros behind it, a list may be too short.
            jobs = small_jobs(generator, 3, 160)
            given = np.zeros(64, np.int64)
            given[:48] = listed(jobs, **({"columns": 0} if generator.random() < 0.2 else {}))
            model.memories[1][704:768] = given
            ask(write(1, 704, given), 64)
            command |= {"weight_base": int(generator.choice([704, 704, 704, 768, 800, 33])),
                        "length": int(generator.choice([sum(job.elements for job in jobs)] * 3 + [160]))}
        ask(push(**command))
        for space, first in ((0, 256), (1, 512)):
            place = first + int(generator.integers(0, 60))
            given = elements(generator, 30)
            model.memories[space][place:place + 30] = given
            ask(write(space, place, given), 30)
            ask(read(space, place - 5, 35), *reduced.to_words(model.memories[space][place - 5:place + 30]))
        ask(POP, model.run(**command))
        space = int(generator.integers(0, 2))
        ask(read(space, 0, 100), *reduced.to_words(model.memories[space][:100]))
    for memory, packet in zip(model.memories, READ_ALL, strict=True):
        ask(packet, *reduced.to_words(memory))
    for packet, name in zip(READ_COUNTERS, COUNTERS, strict=True):
        if name != "COMMAND_CYCLES":  # those of wrong lists are not the model's
            ask(packet, model.counters[name])
    ask(read_register("WEIGHT_VERSION"), model.version)

    node.reset()
    responses = exchange(node, *requests, pattern=pattern, seed=seed, cycles=160_000)
    assert len(responses) == len(requests)
    for packet, response, payload in zip(requests, responses, expected, strict=True):
        assert response[1] == Status.OK
        if packet is POP:
            found = event(response)
            if found.status == EventStatus.BAD_MASK:
                found = dataclasses.replace(found, cycles=0)
            assert found == payload[0]
        else:
            assert response[2:] == [int(word) for word in payload]


class Masked:
    """Random memories with a list of jobs, and what a MASK of them leaves."""

    def __init__(self, jobs, seed, **wrong):
        generator = np.random.default_rng(seed)
        self.model = Model()
        for memory in self.model.memories:
            memory[:] = elements(generator, len(memory), 0)
        given = listed(jobs, **wrong)
        self.model.memories[1][96:96 + len(given)] = given
        self.options = {"operation": Operation.MASK, "gradient_base": 32, "weight_base": 96, "state_base": 512,
                        "length": sum(job.elements for job in jobs)}
        self.fill = [write(space, 0, memory) for space, memory in enumerate(self.model.memories)]

    def check(self, responses):
        """Compare what both memories hold."""
        for response, memory in zip(responses, self.model.memories, strict=True):
            assert response[2:] == reduced.to_words(memory).tolist()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("alternative", [0, 0xFFFF8000])
def test_mask(node, pattern, alternative):
    """Values, event with its cycles, and counters; what is not the jobs' stays as it is."""
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
    case = Masked(jobs, kinds)
    node.reset()
    responses = exchange(node, *case.fill, push(**case.options), POP, *READ_ALL)
    expected = case.model.run(**case.options)
    assert expected.status == EventStatus.OK
    assert event(responses[3]) == expected
    case.check(responses[4:])


@pytest.mark.parametrize("wrong", [
    {"rows": 0}, {"columns": 0}, {"count": 0}, {"rows": 4096}, {"columns": 4096}, {"count": 3}, {"count": 65535},
    {"rows": 4095, "columns": 4095, "count": 65535}, {"elements": 0}, {"elements": 23}, {"elements": 25},
    {"elements": 24 + (1 << 16)}, {"elements": 1 << 31}, {"kinds": 64}, {"kinds": 127},
    {"diagonal": 4096}, {"diagonal": -4097 & 0xFFFFFFFF}, {"diagonal": 0x10000}, {"diagonal": 0xFFFEFFFF},
    {"diagonal": 0x8000}, {"diagonal": 0xFFFF0000}, {"length_rows": 4096}, {"length_columns": 0x8000},
    {"first_row": 4096}, {"end_row": 4096}, {"first_column": 4096}, {"end_column": 65535}, {"width": 4096},
])
def test_wrong_jobs(node, wrong):
    """All jobs before it are carried out, and nothing of it; and then a right one is."""
    jobs = [masking.Job(rows=3, columns=5, mask=masking.Mask(triangle=True)),
            masking.Job(rows=4, columns=3, count=2, mask=masking.Mask(triangle_inverse=True, diagonal=-4096))]
    case = Masked(jobs, 3, **wrong)
    node.reset()
    again = {**case.options, "length": 15}
    responses = exchange(node, *case.fill, push(**case.options), POP, *READ_ALL, push(**again), POP, *READ_ALL)
    expected = case.model.run(**case.options)
    assert (expected.status, expected.detail) == (EventStatus.BAD_MASK, 1)
    found = event(responses[3])
    assert dataclasses.replace(found, cycles=0) == expected
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
    """Where a list begins and ends: with zeros behind it, and at the end of the memory."""
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
    """The last job ends where the memory ends; one more element, and a job is missing."""
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


# What is the same as in a full node, and what a reduced one lacks.


def test_operations_that_are_left_out(least):
    least.reset()
    operations = [operation for operation in range(256) if operation > 1]
    responses = exchange(least, *(packet for operation in operations
                                  for packet in (push(operation=operation, length=7, size=0), POP)),
                         push(operation=Operation.FUSED_UPDATE, length=7), POP, push(operation=0, size=0), POP,
                         cycles=40_000)
    found = [event(response) for response in responses[1::2]]
    assert [(each.status, each.detail) for each in found[:-2]] == [
        (EventStatus.UNKNOWN_OPERATION, operation) for operation in operations]
    assert [(each.status, each.weight_version) for each in found[-2:]] == [(EventStatus.OK, 1)] * 2


def test_registers(node):
    """Constants and settings; what the node lacks is zero, and stays so."""
    node.reset()
    settings = [entry for entry in REGISTERS if entry.access.writable and entry.name not in ("CONTROL", "FLAGS")]
    present = {"OPTIMIZER": 0, "GRADIENT_SCALE": 1 << 16, "LEARNING_RATE": 0, "MASK_ALTERNATIVE": 1 << 15,
               "MASK_THRESHOLD": 0, "TIMEOUT": 1 << 20}
    everything = request(Opcode.READ_REGISTER, len(REGISTERS), 0)
    before, *written, after, clear, cleared = exchange(
        node, everything, *(write_register(entry.name, 0x12345678) for entry in settings), everything,
        write_register("CONTROL", 2), everything)
    constants = {"ID": IDENTIFIER, "CONFIGURATION_HASH": CONFIG.hash, "LANES": 1, "NODES_MAX": 1,
                 "GRADIENT_WORDS": SIZES[0], "WEIGHT_WORDS": SIZES[1], "STATE_WORDS": CONFIG.state_words,
                 "STATE_PLANES": 0, "SEGMENT_ELEMENTS": CONFIG.segment}
    for response, values in ((before, present), (after, dict.fromkeys(present, 0x12345678) | {"OPTIMIZER": 8})):
        found = dict(zip((entry.name for entry in REGISTERS), response[2:], strict=True))
        assert found.pop("CYCLES") > 0
        assert found == dict.fromkeys(found, 0) | constants | values
    assert [response[1:] for response in [*written, clear]] == [[Status.OK, 1]] * (len(settings) + 1)
    assert cleared[2 + register("CYCLES").address] < after[2 + register("CYCLES").address]


@pytest.mark.parametrize("size", SIZES)
def test_ranges(node, size):
    """Spaces and ranges are compared as a full node compares them; elements are cut and extended."""
    node.reset()
    space = SIZES.index(size)
    place = space << 28
    responses = exchange(
        node, request(Opcode.WRITE_MEMORY, 3, place | size - 3, 0x12348000, 0xFFFF7FFF, 0x1FFFF),
        request(Opcode.READ_MEMORY, 3, place | size - 3),
        request(Opcode.READ_MEMORY, 3, place | size - 2), request(Opcode.WRITE_MEMORY, 1, place | size, 1),
        request(Opcode.READ_MEMORY, 1, 2 << 28), request(Opcode.WRITE_MEMORY, 2, place | 8, 5),
        request(Opcode.READ_MEMORY, 1, place | 8))
    assert [response[1] for response in responses] == [
        Status.OK, Status.OK, *[Status.BAD_ADDRESS] * 3, Status.BAD_LENGTH, Status.OK]
    assert responses[1][2:] == [0xFFFF8000, 0x7FFF, 0xFFFFFFFF]
    assert [response[2:] for response in responses[3:]] == [[0], [], [1], [5]]


def test_flags(node):
    """Commands wait for flags, take them and set them; one waits in vain, and a rule is looked at after the wait."""
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
    assert values[1][0] & 3 == 2  # it waits
    assert values[1][0] >> 16 == 1
    assert [values[3], values[6], values[11], values[16]] == [[1], [4], [12], [12]]
    found = [event(responses[n]) for n in (5, 10, 14)]
    assert [(each.tag, each.status, each.detail) for each in found] == [
        (1, EventStatus.OK, 0), (2, EventStatus.BAD_RULE, 2), (3, EventStatus.WAIT_TIMEOUT, 0x8010)]
    assert found[0].cycles == 1
    assert found[2].cycles == 100
    assert values[15] == [3 | EventStatus.WAIT_TIMEOUT << 16]


def test_link_reset(node):
    """What runs ends at its next gradient, and what waits is not run."""
    node.reset()
    gradients = np.full(352, 5)
    responses = exchange(
        node, write(0, 0, gradients), push(operation=1, length=352, tag=1, signal=1),
        push(operation=0, tag=2), push(operation=0, tag=3, wait=1), write_register("CONTROL", 1), POP, POP, POP,
        write_register("CONTROL", 0), push(operation=1, length=352, tag=4), POP)
    found = [event(response) for response in [*responses[5:8], responses[10]]]
    assert [(each.tag, each.status, each.detail, each.weight_version) for each in found] == [
        (1, EventStatus.LINK_RESET, 0, 0), (2, EventStatus.LINK_RESET, 0, 0), (3, EventStatus.LINK_RESET, 0, 0),
        (4, EventStatus.OK, 0, 1)]
    assert found[0].cycles < update_cycles(352, 352) == found[3].cycles


def test_full_queues(node):
    """Eight commands wait beside one that runs, and eight events beside those that wait for a place: none is lost."""
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
    """The next command is carried out as ever, whatever the last one was at."""
    case = Masked(small_jobs(np.random.default_rng(12), 6, 320), 4)
    rate = write_register("LEARNING_RATE", 0x8000)
    fill = [rate, write_register("MASK_THRESHOLD", 900), *case.fill, push(**case.options | {"operation": operation})]
    node.reset()
    assert len(exchange(node, *fill, cycles=2800 + cycles)) == 5
    node.reset()
    responses = exchange(node, *fill, POP, *READ_ALL)
    case.model.registers |= {"LEARNING_RATE": 0x8000, "MASK_THRESHOLD": 900}
    expected = case.model.run(**case.options | {"operation": operation})
    assert expected.status == EventStatus.OK
    assert event(responses[5]) == expected
    case.check(responses[6:])


def test_settings_are_those_of_the_start(node):
    """What is set while a command runs is for the next one."""
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
        # As what came before has changed them.
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
        mine = responses[14 * n:14 * (n + 1)]
        assert event(mine[11]) == ended
        for response, memory in zip(mine[12:], held, strict=True):
            assert response[2:] == reduced.to_words(memory).tolist()
