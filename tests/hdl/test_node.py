"""Tests of a whole node through its ports only: hdl/node.py.

Rings of nodes are tested in tests/hdl/ring/test_collective.py and tests/host/.
"""

import functools

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import DESCRIPTOR_WORDS, Opcode, Operation, Space, Status
from hdl.control.registers import IDENTIFIER, register
from hdl.node import Node
from host.driver.command import Command
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
    """Requests for a fused update on a one-node ring (SGD, rate 1/2), followed by reading the weights."""
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
    """A one-node ring updates weights with its own gradient, regardless of host stalls."""
    generator = np.random.default_rng(3)
    gradients = generator.standard_normal(LENGTH).astype(np.float32)
    weights = generator.standard_normal(LENGTH).astype(np.float32)
    node.reset()
    *rest, last = exchange(node, *update(gradients, weights), pattern=pattern, cycles=60_000)
    assert [response[1] for response in [*rest, last]] == [Status.OK] * 6
    event = rest[-1][2:]
    assert event[0] == 5  # tag of the command; its status and flags are 0
    expected = weights - np.float32(0.5) * gradients
    assert (np.array(last[2:], np.uint32) == golden.bits(expected)).all()


@pytest.mark.parametrize("words", [1, 2, 3, 200])
def test_reset_in_the_middle_of_a_packet(node, words):
    """After a reset, the next word starts a new packet, and all registers have their initial values."""
    gradients = np.ones(LENGTH, np.float32)
    first = update(gradients, gradients)
    node.reset()
    assert len(exchange(node, first[0], first[1][:words], cycles=1000)) >= 1
    node.reset()
    identifier, rate, *rest, last = exchange(
        node,
        request(Opcode.READ_REGISTER, 1, register("ID").address),
        request(Opcode.READ_REGISTER, 1, register("LEARNING_RATE").address),
        *update(gradients, gradients),
    )
    assert identifier[1:] == [Status.OK, IDENTIFIER]
    assert rate[1:] == [Status.OK, 0]
    assert [response[1] for response in [*rest, last]] == [Status.OK] * 6
    assert set(last[2:]) == {int(np.float32(0.5).view(np.uint32))}


def test_reset_in_the_middle_of_a_command(node):
    gradients = np.ones(LENGTH, np.float32)
    requests = update(gradients, gradients)
    node.reset()
    exchange(node, *requests[:4], cycles=2 * LENGTH + 200)  # the optimizer burst has started
    node.reset()
    *rest, last = exchange(node, *requests)
    assert [response[1] for response in [*rest, last]] == [Status.OK] * 6
    assert set(last[2:]) == {int(np.float32(0.5).view(np.uint32))}


# Tests of masking commands.


def write(space, address, elements):
    return request(Opcode.WRITE_MEMORY, len(elements), space << 28 | address, *elements)


def test_masking_and_updates_by_turns(node):
    """Commands of two engines share a queue, ordered by flags, while the host accesses other addresses."""
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
        *commands, *elsewhere * 2, *[request(Opcode.POP_EVENT, 4, 100_000)] * 5,
        *(request(Opcode.READ_MEMORY, 1024, space << 28) for space in (Space.GRADIENT, Space.WEIGHT)), cycles=20_000)
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


def test_a_ring_under_cocotb_answers_as_the_verilated_ring():
    """In both simulators, two nodes send the same responses to the same words in the same cycles.

    Both nodes are in one model, which takes a long time to build, so they have only SGD, one lane and no masks.
    """
    config = bench_ring_speed.CONFIG.replace(lanes=1, memories={"planes": 0}, masking=False, sparsify=False)
    speed = bench_ring_speed.measure(config, nodes=2, threads=(1,), repetitions=1)
    assert speed.cycles > bench_ring_speed.LENGTH
