"""Host requests to an int16 node, and a node model that gives the expected responses."""

import dataclasses
import functools

import numpy as np

from hdl.control.protocol import EventStatus, Opcode, Operation, Status
from hdl.control.registers import register
from hdl.features.int16.engine import sparsify_cycles, update_cycles
from hdl.features.int16.feature import Int16Config, Int16Memories
from hdl.features.int16.masking import mask_cycles
from host.driver.command import Event
from sim.golden.features.int16 import int16_node
from tests.hdl import host_requests
from tests.hdl.host_requests import event, push, request
from tests.hdl.masking import masks

# Memory sizes that are not powers of two, so that range checks need all bits.
CONFIG = Int16Config(memories=Int16Memories(gradient=352, weight=800))
SIZES = CONFIG.memory_map.words
COUNTERS = "COMPRESSED_WORDS", "ELEMENTS_ENCODED", "COMMAND_CYCLES", "ELEMENTS_MASKED"

exchange = functools.partial(host_requests.exchange, cycles=40_000)


def write_register(name, value):
    return request(Opcode.WRITE_REGISTER, 1, register(name).address, value)


def read_register(name):
    return request(Opcode.READ_REGISTER, 1, register(name).address)


def write(space, address, elements):
    return request(Opcode.WRITE_MEMORY, len(elements), space << 28 | address, *int16_node.to_words(elements))


def read(space, address, count):
    return request(Opcode.READ_MEMORY, count, space << 28 | address)


POP = request(Opcode.POP_EVENT, 4, 100_000)
READ_ALL = [read(space, 0, size) for space, size in enumerate(SIZES)]
READ_COUNTERS = [read_register(name) for name in COUNTERS]


def small_jobs(generator, count, most):
    """Draw mask jobs without external masks, with at most ``most`` elements in total."""
    while True:
        jobs = [dataclasses.replace(job, mask=dataclasses.replace(job.mask, external=False))
                for job in masks.jobs(generator, count, limit=8)]
        if sum(job.elements for job in jobs) <= most:
            return jobs


def listed(jobs, **wrong):
    """Encode a list of jobs as elements of the weight memory; ``wrong`` replaces fields of the last job."""
    words = [masks.job_words(job, 1, **(wrong if n == len(jobs) - 1 else {})) for n, job in enumerate(jobs)]
    return int16_node.from_words(np.concatenate(words).view(np.uint16))


def elements(generator, count, zeros=0.5):
    """Draw elements: large, small, at the limits of the range, and zero with probability ``zeros``."""
    result = generator.integers(-32768, 32768, count) >> generator.integers(0, 16, count)
    result[generator.random(count) < 0.05] = -32768
    result[generator.random(count) < zeros] = 0
    return result


class Model:
    """Model of a node's memories, registers and events."""

    def __init__(self, sizes=SIZES):
        self.sizes = sizes
        self.memories = [np.zeros(size, np.int64) for size in sizes]
        self.registers = {"GRADIENT_SCALE": 1 << 16, "LEARNING_RATE": 0, "MASK_THRESHOLD": 0,
                          "MASK_ALTERNATIVE": 1 << 15, "OPTIMIZER": 0}
        self.version = 0
        self.counters = dict.fromkeys(COUNTERS, 0)

    def run(self, *, operation, tag=0, gradient_base=0, weight_base=0, state_base=0, length=0, rank=0, size=1, port=0,
            root=0):
        bases = gradient_base, weight_base, state_base
        verdict = self._check(operation, bases, length, (rank, size, port, root))
        cycles = 0
        if verdict is None:
            verdict, cycles = self._carry_out(operation, gradient_base, weight_base, length)
            self.counters["COMMAND_CYCLES"] += cycles
        status, detail = verdict
        return Event(tag=tag, status=status, flags=0, detail=detail, cycles=cycles, weight_version=self.version)

    def _check(self, operation, bases, length, position):
        if operation == Operation.QUIESCE:
            return None
        if operation not in (Operation.FUSED_UPDATE, Operation.MASK, Operation.SPARSIFY):
            return EventStatus.UNKNOWN_OPERATION, operation
        if operation == Operation.FUSED_UPDATE:
            if self.registers["OPTIMIZER"] & 15:
                return EventStatus.BAD_RULE, self.registers["OPTIMIZER"] & 15
            if position[:3] != (0, 1, 0):
                return EventStatus.BAD_RANK, sum(part << 8 * n for n, part in enumerate(position))
        lists = operation == Operation.MASK
        for n, base in enumerate(bases if lists else bases[:2]):
            capacity = self.sizes[min(n, 1)]
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
            after = int16_node.update(gradients, second, gradient_scale=self.registers["GRADIENT_SCALE"] & 0x3FFFF,
                                   learning_rate=self.registers["LEARNING_RATE"] & 0x3FFFF)
            cycles = update_cycles(length, np.count_nonzero(gradients))
            second[:] = after.weights
            self.version += 1
            self.counters["COMPRESSED_WORDS"] += after.words
            self.counters["ELEMENTS_ENCODED"] += length
        elif operation == Operation.SPARSIFY:
            after = int16_node.sparsify(gradients, second, self.registers["MASK_THRESHOLD"])
            gradients[:], second[:] = after.gradients, after.errors
            detail, cycles = after.dropped, sparsify_cycles(length)
            self.counters["ELEMENTS_MASKED"] += after.dropped
        elif operation == Operation.MASK:
            after = int16_node.mask(gradients, self.memories[1][weight_base:], self.registers["MASK_ALTERNATIVE"])
            gradients[:] = after.elements
            self.counters["ELEMENTS_MASKED"] += after.replaced
            detail = after.replaced
            # Read the shapes of the executed jobs from memory.
            taken, address, cycles = 0, weight_base, []
            while after.bad is None and taken < length:
                count, rows, columns = (int(value) for value in self.memories[1][address + 1:address + 4])
                cycles.append((rows, columns, count))
                taken += rows * columns * count
                address += int16_node.JOB_ELEMENTS
            cycles = mask_cycles(cycles)
            if after.bad is not None:
                return (EventStatus.BAD_MASK, after.bad), 0
        return (EventStatus.OK, detail), int(cycles)


class Masked:
    """Return random memories with a list of mask jobs, and the options of the MASK command for it."""

    def __init__(self, jobs, seed, **wrong):
        generator = np.random.default_rng(seed)
        self.model = Model()
        for memory in self.model.memories:
            memory[:] = elements(generator, len(memory), 0)
        words = listed(jobs, **wrong)
        self.model.memories[1][96:96 + len(words)] = words
        self.options = {"operation": Operation.MASK, "gradient_base": 32, "weight_base": 96, "state_base": 512,
                        "length": sum(job.elements for job in jobs)}
        self.fill = [write(space, 0, memory) for space, memory in enumerate(self.model.memories)]

    def run(self, node, *first, **options):
        options = self.options | options
        node.reset()
        responses = exchange(node, *first, *self.fill, push(**options), POP, *READ_ALL)[len(first):]
        expected = self.model.run(**options)
        assert event(responses[3]) == expected
        self.check(responses[4:])
        return expected

    def check(self, responses):
        """Compare the responses with the expected contents of both memories."""
        for response, memory in zip(responses, self.model.memories, strict=True):
            assert response[2:] == int16_node.to_words(memory).tolist()


def session(seed):
    """Draw requests; return them with the payloads of the expected responses.

    Valid and invalid commands are mixed. Settings change before each command, and the host accesses other parts of
    the memories while commands run.
    """
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
                            ("OPTIMIZER", generator.choice([0, 0, 0, 0, 16, 1, 9]))):
            model.registers[name] = int(value)
            ask(write_register(name, value), 1)
        # The host accesses parts of the memories that valid commands do not use.
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
            # SPARSIFY and updates leave the list of mask jobs intact. A MASK command may have a wrong length, since
            # zeros follow the list.
            jobs = small_jobs(generator, 3, 160)
            values = np.zeros(64, np.int64)
            values[:48] = listed(jobs, **({"columns": 0} if generator.random() < 0.2 else {}))
            model.memories[1][704:768] = values
            ask(write(1, 704, values), 64)
            command |= {"weight_base": int(generator.choice([704, 704, 704, 768, 800, 33])),
                        "length": int(generator.choice([sum(job.elements for job in jobs)] * 3 + [160]))}
        ask(push(**command))
        for space, first in ((0, 256), (1, 512)):
            address = first + int(generator.integers(0, 60))
            values = elements(generator, 30)
            model.memories[space][address:address + 30] = values
            ask(write(space, address, values), 30)
            ask(read(space, address - 5, 35), *int16_node.to_words(model.memories[space][address - 5:address + 30]))
        ask(POP, model.run(**command))
        space = int(generator.integers(0, 2))
        ask(read(space, 0, 100), *int16_node.to_words(model.memories[space][:100]))
    for memory, packet in zip(model.memories, READ_ALL, strict=True):
        ask(packet, *int16_node.to_words(memory))
    for packet, name in zip(READ_COUNTERS, COUNTERS, strict=True):
        if name != "COMMAND_CYCLES":  # the model does not count cycles of invalid lists
            ask(packet, model.counters[name])
    ask(read_register("WEIGHT_VERSION"), model.version)
    return requests, expected


def check_session(node, seed, pattern):
    requests, expected = session(seed)
    node.reset()
    responses = exchange(node, *requests, pattern=pattern, seed=seed, cycles=160_000)
    assert len(responses) == len(requests)
    for packet, response, payload in zip(requests, responses, expected, strict=True):
        assert response[1] == Status.OK
        if packet is POP:
            ended = event(response)
            if ended.status == EventStatus.BAD_MASK:
                ended = dataclasses.replace(ended, cycles=0)  # the model does not count the cycles of an invalid list
            assert ended == payload[0]
        else:
            assert response[2:] == [int(word) for word in payload]
