"""Microbatches on golden nodes: the driver, which gives each node several gradients, and the memory for these
gradients."""

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.control.registers import register
from hdl.features.microbatches.feature import Microbatches
from hdl.features.microbatches.layout import ADDENDS, MAX_ADDENDS
from host.driver.memory import Allocation, fitted
from host.features.microbatches.limits import MAX_COUNT, MAX_TOTAL
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.transports.session import TransportName, open_session
from sim.golden import ring as golden
from sim.golden.features.reproducible.sums import sum_of
from tests.refusals import refuses

CONFIG = NodeConfig(gradients="sum32", features=(Microbatches(),), memories=Memories(gradient=512, weight=512))


def gradients_of(count, length=100):
    return list(np.random.default_rng(count).standard_normal((count, length)).astype(np.float32))


def test_sums():
    """Sums include all gradients of each node or, after ``clear``, only one."""
    gradients = gradients_of(5)
    with open_session(CONFIG, nodes=2, transport=TransportName.GOLDEN) as session:
        ring = session.ring
        for counts in ([4, 1], [2, 3], [2, 3]):
            ring.microbatches.write(gradients, counts)
            ring.collectives.all_reduce(100)
            expected = sum_of(golden.canonical(golden.bits(np.stack(gradients))), width=32)
            assert (ring.memory.read_gradients(100).view(np.uint32) == expected).all()
        ring.microbatches.clear()
        ring.memory.write_gradients(gradients[:2])
        ring.collectives.all_reduce(100)
        expected = sum_of(golden.canonical(golden.bits(np.stack(gradients[:2]))), width=32)
        assert (ring.memory.read_gradients(100).view(np.uint32) == expected).all()


@pytest.mark.parametrize(("count", "counts", "message"), [
    (5, [5], "Counts must be 2 numbers from 1 to 255 with the sum 5, not [5]"),
    (5, [5, 0], "Counts must be 2 numbers from 1 to 255 with the sum 5, not [5, 0]"),
    (5, [2, 2], "Counts must be 2 numbers from 1 to 255 with the sum 5, not [2, 2]"),
    (300, [150, 150], "Gradients of all nodes must be at most 256, not 300"),
    (6, [5, 1], "Gradients must take at most the 512 elements of a node's memory, not 612"),
])
def test_refused(count, counts, message):
    with open_session(CONFIG, nodes=2, transport=TransportName.GOLDEN) as session:
        refuses(message, session.ring.microbatches.write, gradients_of(count), counts)


def test_train(few):
    """``train`` uses microbatches, rejects invalid numbers of them, and finally leaves one gradient per node."""
    options = {"max_steps": 2, "hidden": (), "batch": 20}
    weights = []
    for nodes in (1, 3):
        config = CONFIG.replace(memories={"gradient": 4096, "weight": 2048})
        with open_session(config, nodes=nodes, transport=TransportName.GOLDEN) as session:
            train(session.ring, few, TrainingConfig(microbatches=4, **options))
            weights.append(session.ring.memory.read_weights(650)[0].tobytes())
            session.ring.memory.write_gradients([np.ones(64, np.float32)] * nodes)
            session.ring.collectives.all_reduce(64)
            assert (session.ring.memory.read_gradients(64) == nodes).all()
            if nodes > 1:
                refuses("Microbatches must be between the number of nodes, 3, and 256, not 2", train, session.ring,
                        few, TrainingConfig(microbatches=2, **options))
            refuses("Microbatches must be of a run whose gradients are computed on the host and sent whole, without "
                    "a schedule that overlaps passes", train, session.ring, few,
                    TrainingConfig(microbatches=4, density=0.5, **options))
    assert weights[0] == weights[1]
    with open_session(NodeConfig(gradients="sum32"), nodes=2, transport=TransportName.GOLDEN) as session:
        refuses("Nodes must have features=(Microbatches(),) to sum several gradients each", train, session.ring, few,
                TrainingConfig(microbatches=4, **options))


def test_other_nodes():
    with open_session(NodeConfig(gradients="sum32"), nodes=2, transport=TransportName.GOLDEN) as session:
        refuses("Nodes must have features=(Microbatches(),) to sum several gradients each", getattr, session.ring,
                "microbatches")


@pytest.mark.parametrize(("values", "strides", "message"), [
    ((2 | 4 << 16, 1 | 4 << 16), (128, 128), "[2, 1] as total, and strides must be equal, not totals [4] and strides "
     "[128]"),
    ((2 | 3 << 16, 1 | 3 << 16), (128, 96), "[2, 1] as total, and strides must be equal, not totals [3] and strides "
     "[96, 128]"),
    ((2, 1), (128, 128), "[2, 1] as total, and strides must be equal, not totals [2] and strides [128]"),
])
def test_registers_that_disagree(values, strides, message):
    """Golden nodes reject features that they do not model."""
    with open_session(CONFIG, nodes=2, transport=TransportName.GOLDEN) as session:
        ring = session.ring
        ring.memory.write_gradients(gradients_of(2))
        ring.settings.write_each("MICROBATCHES", values)
        ring.settings.write_each("MICROBATCH_STRIDE", strides)
        refuses(f"Registers MICROBATCHES must have the sum of the counts {message}", ring.collectives.all_reduce, 100)


def test_limits():
    """The host's limits on microbatches are equal to the limits of the registers and the gateware."""
    assert max(ADDENDS) == MAX_COUNT == (1 << register("MICROBATCHES").field("count").width) - 1
    assert MAX_ADDENDS == MAX_TOTAL == 256


def test_memory():
    """Nodes are given memory for the largest number of gradients on any node."""
    allocation = Allocation(length=650, microbatches=8)
    assert [allocation.gradient_words(nodes) for nodes in (1, 3, 4, 8)] == [
        7 * 672 + 650, 2 * 672 + 650, 672 + 650, 650]
    assert Allocation(length=650).gradient_words(3) == 650
    node = NodeConfig(gradients="sum32", memories=Memories(gradient=1024, weight=1024, state=1024))
    assert fitted(node, [allocation], nodes=3).memories.gradient == 2048
    assert fitted(node, [allocation], nodes=8).memories.gradient == 1024
    refuses("Gradients of microbatches must take at most the 1,024 elements of a node's memory, not 1,322: take "
            "fewer microbatches or more nodes", allocation.check, node, nodes=4)
    refuses("Gradients of microbatches must take at most the 524,288 words of the largest memory of a node, not "
            "1,600,000: take fewer microbatches or more nodes", fitted, node,
            [Allocation(length=100_000, microbatches=32)], nodes=2)
