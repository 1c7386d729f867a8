"""The node as a whole, by its ports alone: hdl/node.py.

Rings of nodes are in tests/hdl/ring/test_collective.py and tests/host/.
"""

import functools

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import DESCRIPTOR_WORDS, EventFlag, EventStatus, Opcode, Operation, Space, Status
from hdl.control.registers import IDENTIFIER, register
from hdl.masking.engine import mask_cycles, sparsify_cycles
from hdl.masking.mask import KINDS
from hdl.node import Node
from host.driver.command import Command, Event
from sim.bench import ring_speed as bench_ring_speed
from sim.golden import masking
from sim.golden import ring as golden
from sim.verilated.vectors import Unit
from tests.hdl import host_requests
from tests.hdl.host_requests import event, push, request
from tests.hdl.masking import masks

CONFIG = NodeConfig(memories=Memories(gradient=1024, weight=1024, state=1024))
LENGTH = 700

exchange = functools.partial(host_requests.exchange, cycles=12_000)


def update(gradients, weights):
    """Requests of a fused update on a ring of one, by SGD with a learning rate of 1/2, and the reading of weights."""
    command = Command(operation=Operation.FUSED_UPDATE, length=LENGTH, tag=5)
    half = np.float32(0.5).view(np.uint32)
    return [
        request(Opcode.WRITE_REGISTER, 1, register("LEARNING_RATE").address, half),
        request(Opcode.WRITE_MEMORY, LENGTH, Space.GRADIENT << 28, *gradients.view(np.uint32)),
        request(Opcode.WRITE_MEMORY, LENGTH, Space.WEIGHT << 28, *weights.view(np.uint32)),
        request(Opcode.PUSH_COMMAND, DESCRIPTOR_WORDS, *command.words()),
        request(Opcode.POP_EVENT, 4, 100_000),
        request(Opcode.READ_MEMORY, LENGTH, Space.WEIGHT << 28),
    ]


@pytest.fixture(scope="module")
def node():
    return Unit(Node(CONFIG))


@pytest.mark.parametrize("pattern", ["none", "geometric", "freeze", "alternating"])
def test_update_alone(node, pattern):
    """A ring of one: a burst over the local gradient, whatever the host's stalls."""
    generator = np.random.default_rng(3)
    gradients = generator.standard_normal(LENGTH).astype(np.float32)
    weights = generator.standard_normal(LENGTH).astype(np.float32)
    node.reset()
    *others, found = exchange(node, *update(gradients, weights), pattern=pattern, cycles=60_000)
    assert [response[1] for response in [*others, found]] == [Status.OK] * 6
    event = others[-1][2:]
    assert event[0] == 5  # its tag, and no status or flag
    expected = weights - np.float32(0.5) * gradients
    assert (np.array(found[2:], np.uint32) == golden.bits(expected)).all()


@pytest.mark.parametrize("words", [1, 2, 3, 200])
def test_reset_in_the_middle_of_a_packet(node, words):
    """After a reset the node takes the next word for the first of a packet, and its registers are as at the start."""
    gradients = np.ones(LENGTH, np.float32)
    first = update(gradients, gradients)
    node.reset()
    assert len(exchange(node, first[0], first[1][:words], cycles=1000)) >= 1
    node.reset()
    identifier, rate, *others, found = exchange(
        node,
        request(Opcode.READ_REGISTER, 1, register("ID").address),
        request(Opcode.READ_REGISTER, 1, register("LEARNING_RATE").address),
        *update(gradients, gradients),
    )
    assert identifier[1:] == [Status.OK, IDENTIFIER]
    assert rate[1:] == [Status.OK, 0]
    assert [response[1] for response in [*others, found]] == [Status.OK] * 6
    assert set(found[2:]) == {int(np.float32(0.5).view(np.uint32))}


def test_reset_in_the_middle_of_a_command(node):
    gradients = np.ones(LENGTH, np.float32)
    requests = update(gradients, gradients)
    node.reset()
    exchange(node, *requests[:4], cycles=2 * LENGTH + 200)  # the burst has begun
    node.reset()
    *others, found = exchange(node, *requests)
    assert [response[1] for response in [*others, found]] == [Status.OK] * 6
    assert set(found[2:]) == {int(np.float32(0.5).view(np.uint32))}


# Masking.

ALTERNATIVE = 0xC61C4000
COUNTERS = "MASK_WORDS_FETCHED", "ELEMENTS_MASKED", "COMMAND_CYCLES"


def write(space, address, elements):
    return request(Opcode.WRITE_MEMORY, len(elements), space << 28 | address, *elements)


POP = request(Opcode.POP_EVENT, 4, 100_000)
READ_ALL = [request(Opcode.READ_MEMORY, 1024, space << 28) for space in (Space.GRADIENT, Space.WEIGHT)]
READ_COUNTERS = [request(Opcode.READ_REGISTER, 1, register(name).address) for name in COUNTERS]


class Masked:
    """Random memories with a list of jobs and words, and the expected result of a MASK."""

    def __init__(self, jobs, seed, **wrong):
        generator = np.random.default_rng(seed)
        self.jobs = jobs
        self.memories = [generator.integers(0, 1 << 32, 1024, dtype=np.uint32) for _ in range(2)]
        words, self.kept = masks.external_all(generator, jobs)
        listed = [masks.job_words(job, CONFIG.lanes) for job in jobs[:-1]]
        listed = np.concatenate([*listed, masks.job_words(jobs[-1], CONFIG.lanes, **wrong)])
        self.memories[1][96:96 + len(listed)] = listed
        self.memories[1][512:512 + len(words)] = words
        self.words = len(words)
        self.options = {"operation": Operation.MASK, "gradient_base": 32, "weight_base": 96, "state_base": 512,
                        "length": sum(masks.memory_elements(job, CONFIG.lanes) for job in jobs)}
        self.fill = [write(space, 0, memory) for space, memory in enumerate(self.memories)]

    def expected(self, jobs=None):
        """Gradient memory after a number of jobs, and count of masked elements."""
        memory, place, masked = self.memories[0].copy(), 32, 0
        for job, kept in list(zip(self.jobs, self.kept, strict=True))[:jobs]:
            keep, real = masks.padded(kept, job, CONFIG.lanes)
            memory[place:place + len(keep)][real & ~keep] = ALTERNATIVE
            masked += int((real & ~keep).sum())
            place += len(keep)
        return memory, masked

    @property
    def cycles(self):
        return mask_cycles([(job.rows, job.columns, job.count) for job in self.jobs], lanes=CONFIG.lanes)


def masked_jobs(seed, **options):
    generator = np.random.default_rng(seed)
    while True:
        jobs = masks.jobs(generator, 6, **options)
        if sum(masks.memory_elements(job, CONFIG.lanes) for job in jobs) <= 992:
            return jobs


@pytest.mark.parametrize("pattern", ["none", "geometric", "freeze", "alternating"])
def test_mask(node, pattern):
    """Values, event and counters; all elements outside the jobs stay, in both memories."""
    case = Masked(masked_jobs(4), 4)
    node.reset()
    responses = exchange(node, *case.fill, push(**case.options, tag=7), POP, *READ_COUNTERS, *READ_ALL,
                         pattern=pattern, cycles=40_000)
    memory, masked = case.expected()
    assert event(responses[3]) == Event(tag=7, status=EventStatus.OK, flags=EventFlag(0), detail=masked,
                                        cycles=case.cycles, weight_version=0)
    assert case.words > 0
    assert [response[2] for response in responses[4:7]] == [case.words, masked, case.cycles]
    np.testing.assert_array_equal(responses[7][2:], memory)
    np.testing.assert_array_equal(responses[8][2:], case.memories[1])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "external"])
def test_mask_made_and_fetched(node, kind):
    """A mask from indices equals the mask from words, without a fetch of words."""
    mask = masks.mask(np.random.default_rng(1), {kind: True}, 13, 22)
    made = Masked([masking.Job(rows=13, columns=22, count=2, mask=mask)], 2)
    fetched = Masked([masking.Job(rows=13, columns=22, count=2, mask=masking.Mask(external=True))], 2)
    words = masking.words(made.kept[0])
    fetched.memories[1][512:512 + len(words)] = words
    found = []
    for case in (made, fetched):
        node.reset()
        fill = [write(space, 0, memory) for space, memory in enumerate(case.memories)]
        found.append(exchange(node, *fill, push(**case.options), POP, *READ_COUNTERS, READ_ALL[0]))
    np.testing.assert_array_equal(found[0][7][2:], made.expected()[0])
    assert found[0][3:4] + found[0][5:] == found[1][3:4] + found[1][5:]
    assert [responses[4][2] for responses in found] == [0, -(-2 * 13 * 22 // 32)]


def test_statuses_of_mask(node):
    """Each way in which a command is refused, one behind the other, and good ones between them."""
    good = Masked(masked_jobs(5), 5)
    bad = Masked(good.jobs, 5, columns=0)
    wrong = len(good.jobs) - 1
    commands = [
        ({}, EventStatus.BAD_MASK, wrong),
        ({"gradient_base": 33}, EventStatus.BAD_BASE, 33),
        ({"gradient_base": 1024}, EventStatus.BAD_LENGTH, 0),
        ({"weight_base": 1056}, EventStatus.BAD_BASE, 1056),
        ({"weight_base": 8}, EventStatus.BAD_BASE, 8),
        ({"state_base": 1056}, EventStatus.BAD_BASE, 1056),
        ({"state_base": 520}, EventStatus.BAD_BASE, 520),
        ({"weight_base": 1024}, EventStatus.BAD_MASK, 0),
        ({"length": 1024}, EventStatus.BAD_LENGTH, 992),
        ({"length": 0}, EventStatus.OK, 0),
        ({"operation": 8}, EventStatus.UNKNOWN_OPERATION, 8),
    ]
    node.reset()
    requests = list(bad.fill)
    for options, _, _ in commands:
        requests += [push(**{**bad.options, **options, "rank": 9, "port": 1}), POP]
    last = READ_ALL[0], write(Space.WEIGHT, 0, good.memories[1]), push(**good.options), POP, *READ_ALL
    responses = exchange(node, *requests, *last, cycles=30_000)
    for (_, status, detail), response in zip(commands, responses[3::2], strict=False):
        found = event(response)
        assert (found.status, found.detail) == (status, detail)
    np.testing.assert_array_equal(responses[-6][2:], bad.expected(wrong)[0])
    found = event(responses[-3])
    assert (found.status, found.detail) == (EventStatus.OK, good.expected()[1])
    np.testing.assert_array_equal(responses[-2][2:], good.expected()[0])
    np.testing.assert_array_equal(responses[-1][2:], good.memories[1])


@pytest.mark.parametrize("threshold", [0.0, 0.7, np.inf])
def test_sparsify(node, threshold):
    """Gradients and errors as in the golden model, and the elements around them as they were."""
    generator = np.random.default_rng(6)
    memories = [generator.standard_normal(1024).astype(np.float32).view(np.uint32) for _ in range(2)]
    bits = int(np.float32(threshold).view(np.uint32))
    length = 701
    given = {"operation": Operation.SPARSIFY, "gradient_base": 64, "weight_base": 288, "length": length}
    node.reset()
    responses = exchange(
        node, request(Opcode.WRITE_REGISTER, 1, register("MASK_THRESHOLD").address, bits),
        *(write(space, 0, memory) for space, memory in enumerate(memories)),
        push(**given, tag=3, state_base=7, size=99), POP,
        push(**{**given, "length": 737}), POP, push(**{**given, "weight_base": 1}), POP,
        *READ_COUNTERS, *READ_ALL)
    kept, dropped = masking.sparsify(memories[0][64:64 + length], memories[1][288:288 + length], bits)
    replaced = int((kept == 0).sum())
    cycles = sparsify_cycles(length, lanes=CONFIG.lanes)
    assert event(responses[4]) == Event(tag=3, status=EventStatus.OK, flags=EventFlag(0), detail=replaced,
                                        cycles=cycles, weight_version=0)
    refused = [event(response) for response in responses[6:9:2]]
    assert [(each.status, each.detail) for each in refused] == [
        (EventStatus.BAD_LENGTH, 736), (EventStatus.BAD_BASE, 1)]
    assert [response[2] for response in responses[9:12]] == [0, replaced, cycles]
    memories[0][64:64 + length], memories[1][288:288 + length] = kept, dropped
    for response, memory in zip(responses[12:], memories, strict=True):
        np.testing.assert_array_equal(response[2:], memory)


def test_masking_and_updates_by_turns(node):
    """Commands of both engines in one queue, with flags between them, while the host reads and writes elsewhere."""
    gradients = np.random.default_rng(8).standard_normal(512).astype(np.float32)
    weights = np.random.default_rng(9).standard_normal(512).astype(np.float32)
    errors = np.zeros(256, np.uint32)
    half = int(np.float32(0.5).view(np.uint32))
    node.reset()
    mask = masking.Job(rows=16, columns=16, mask=masking.Mask(triangle=True))
    jobs = masks.job_words(mask, CONFIG.lanes)
    alternative = request(Opcode.WRITE_REGISTER, 1, register("MASK_ALTERNATIVE").address, 0)
    commands = [
        push(operation=Operation.MASK, length=256, weight_base=960, state_base=992, signal=1, tag=1),
        push(operation=Operation.SPARSIFY, length=256, weight_base=512, wait=1, signal=2, tag=2),
        push(operation=Operation.FUSED_UPDATE, length=512, wait=2, signal=4, tag=3),
        push(operation=Operation.MASK, length=256, gradient_base=256, weight_base=960, wait=4, tag=4),
        push(operation=Operation.QUIESCE, tag=5),
    ]
    elsewhere = [write(Space.GRADIENT, 768, errors), request(Opcode.READ_MEMORY, 256, Space.GRADIENT << 28 | 768),
                 write(Space.WEIGHT, 768, errors[:128]), request(Opcode.READ_MEMORY, 128, Space.WEIGHT << 28 | 768)]
    responses = exchange(
        node, alternative, *(request(Opcode.WRITE_REGISTER, 1, register(name).address, half)
                             for name in ("MASK_THRESHOLD", "LEARNING_RATE")),
        write(Space.GRADIENT, 0, gradients.view(np.uint32)), write(Space.WEIGHT, 0, weights.view(np.uint32)),
        write(Space.WEIGHT, 512, errors), write(Space.WEIGHT, 960, jobs),
        *commands, *elsewhere * 2, *[POP] * 5, *READ_ALL, cycles=20_000)
    assert {response[1] for response in responses} == {Status.OK}
    keep = mask.mask.generated(16, 16).reshape(-1)
    bits = gradients.view(np.uint32).copy()
    bits[:256] = np.where(keep, bits[:256], 0)
    bits[:256], errors = masking.sparsify(bits[:256], errors, half)
    updated = weights - np.float32(0.5) * bits.view(np.float32)
    bits[256:] = np.where(keep, bits[256:], 0)
    events = [event(response) for response in responses[-7:-2]]
    assert [(each.tag, each.status, each.weight_version) for each in events] == [
        (1, 0, 0), (2, 0, 0), (3, 0, 1), (4, 0, 1), (5, 0, 1)]
    np.testing.assert_array_equal(responses[-2][2:514], bits)
    np.testing.assert_array_equal(responses[-1][2:514], golden.bits(updated))
    np.testing.assert_array_equal(responses[-1][514:770], errors)


@pytest.mark.parametrize("cycles", [2110, 2130, 2200])
def test_reset_in_the_middle_of_a_mask(node, cycles):
    case = Masked(masked_jobs(10), 10)
    requests = [*case.fill, push(**case.options), POP, READ_ALL[0]]
    node.reset()
    assert len(exchange(node, *requests, cycles=cycles)) == 3
    node.reset()
    responses = exchange(node, *requests)
    assert event(responses[3]).status == EventStatus.OK
    np.testing.assert_array_equal(responses[4][2:], case.expected()[0])


def test_a_ring_under_cocotb_answers_as_the_verilated_ring():
    """The same words to two nodes in both simulations: every response is the same, cycles of commands among them.

    Nodes in one model take long to make, so they are of the kind that has SGD alone, one lane and no masks.
    """
    config = bench_ring_speed.CONFIG.replace(lanes=1, memories={"planes": 0}, masking=False, sparsify=False)
    speed = bench_ring_speed.measure(config, nodes=2, threads=(1,), repetitions=1)
    assert speed.cycles > bench_ring_speed.LENGTH
