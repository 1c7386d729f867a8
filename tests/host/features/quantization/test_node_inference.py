"""Inference through the driver: memory layouts, and complete nodes compared with the golden model."""


import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation, Space
from hdl.features.quantization.engine import peak_cycles
from hdl.features.quantization.layer_list import LAYER_WORDS
from host.driver.command import Command
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.memory import Buffer
from host.driver.ring import Ring
from host.features.quantization.node_inference import pack_inputs, program, unpack_outputs
from host.transports.verilated import OpenRing
from sim.golden.features.quantization.quantization import Layer, infer
from tests.host.rings import CONFIGS, library
from tests.refusals import refuses

CONFIG = CONFIGS["engines"]
WORDS = {"gradient_words": 2048, "weight_words": 2048}


@pytest.fixture
def ring():
    with OpenRing(library(CONFIG), nodes=2, threads=1) as opened:
        result = Ring([Device(transport, CONFIG, name=f"node {n}") for n, transport in enumerate(opened.transports)])
        result.connect()
        yield result


def layer(outputs, inputs, seed=1, **changes):
    generator = np.random.default_rng(seed)
    bits = changes.get("bits", 8)
    return Layer(**{
        "codes": generator.integers(0, 1 << bits, (outputs, inputs)), "variant": "min", "bits": bits,
        "offsets": generator.integers(-(1 << bits), 1, outputs), "bias": generator.integers(-5_000, 5_000, outputs),
        "multiplier": generator.integers(30_000, 60_000, outputs), "shift": np.full(outputs, 13 + bits), "relu": True,
        "signed": False, "last": False} | changes)


def digits(bits=8, **changes):
    """Two layers of the same shapes as in the digits example."""
    return [layer(32, 64, 1, bits=bits, **changes), layer(10, 32, 2, bits=bits, last=True)]


def inputs(samples, count=64, seed=3, low=0, high=17):
    return np.random.default_rng(seed).integers(low, high, (samples, count))


# --- tests of memory layouts


def test_words_of_a_small_network():
    """Words computed by hand for two lanes: 3 inputs, then 2 outputs of 4 bits, then 1 output of 8 bits."""
    layers = [Layer([[1, 2, 3], [4, 5, 15]], [-3, -4], "min", 4, [7, -1], [5, 6], [9, 10], True, False, False),
              Layer([[200, 100]], 130, "max", 8, -2, 0, 1, False, False, True)]
    compiled = program(layers, lanes=2, gradient_words=96, weight_words=64)
    codes = 2 * LAYER_WORDS + 16
    first = [2 << 16 | 0b001000, 3, codes, 32, 0, compiled.target + 0, 0, 0]
    assert compiled.weights[:LAYER_WORDS].tolist()[:5] == first[:5]
    assert compiled.weights[LAYER_WORDS:2 * LAYER_WORDS].tolist() == [
        1 << 16 | 0b110011, 2, codes + 4, compiled.weights[5], 4, 32, 0, 0]
    assert compiled.weights[codes:].tolist() == [0x321, 0, 0xF54, 0, 200 | 100 << 8, 0]
    assert compiled.parameters.tolist() == [
        7, 5 | 9 << 16 | (-3 & 511) << 22, 0xFFFF_FFFF, 6 | 10 << 16 | (-4 & 511) << 22,
        0xFFFF_FFFE, 130 << 22]
    # A sample takes one row in each region, so 64 elements hold 16 samples.
    assert (compiled.source, compiled.target, compiled.samples, compiled.beats) == (32, 32, 16, 2 + 1)
    assert compiled.weights[5] == 32 + 16 * 2
    assert pack_inputs(compiled, [[1, 2, 255], [0, 9, 8]]).tolist() == [0xFF0201, 0, 0x080900, 0]
    assert unpack_outputs(compiled, np.array([5, 99, 0xFFFF_FFFF, 99], np.uint32)).tolist() == [[5], [-1]]


@pytest.mark.parametrize(("layers", "message"), [
    ([], "Network must have at least one layer"),
    ([layer(4, 8)], "The last layer must give sums, not requantised outputs"),
    ([layer(4, 8, last=True), layer(4, 4, last=True)],
     "The last layer, and no other, must give sums, not layer 0 of 2"),
    ([layer(4, 8), layer(4, 5, last=True)],
     "Layer 1 must have as many inputs as there are outputs before it, 4, not 5"),
    ([layer(4, 8), layer(4, 4, signed=True, last=True)],
     "Inputs of layer 1 must be signed exactly if the layer before has no ReLU, not True after True"),
    ([layer(1, 4097, last=True)], "Layer 0 must have at most 4,096 inputs, not 4,097"),
    ([layer(65_536, 1, last=True)], "Layer 0 must have at most 65,535 outputs, not 65,536"),
    ([layer(512, 32, last=True)],
     "Layers and their codes must take at most the 2,048 words of a node's weight memory, not 4,128"),
    ([layer(1000, 1, bits=4, last=True)],
     "Layers and their codes must take at most the 2,048 words of a node's weight memory, not 4,032"),
])
def test_refused_layers(layers, message):
    refuses(message, program, layers, lanes=4, **WORDS)


def test_no_room_for_a_sample():
    message = ("Parameters and vectors of a sample must take at most the 32 elements of a node's gradient memory, "
               "not 52")
    refuses(message, program, [layer(16, 16, last=True)], lanes=4, gradient_words=32, weight_words=4096)


@pytest.mark.parametrize(("x", "message"), [
    (np.zeros((2, 63), int), "Inputs must be rows of 64 numbers, not of shape (2, 63)"),
    (np.zeros(64, int), "Inputs must be rows of 64 numbers, not of shape (64,)"),
    (np.zeros((2, 64)), "Inputs must be integers, not float64"),
    (np.full((1, 64), 256), "Inputs must be 0 to 255, not 256 to 256"),
    (np.full((1, 64), -1), "Inputs must be 0 to 255, not -1 to -1"),
])
def test_refused_inputs(x, message):
    refuses(message, pack_inputs, program(digits(), lanes=4, **WORDS), x)


def test_nodes_without_quantization():
    with OpenRing(library(CONFIG), nodes=1, threads=1) as opened:
        plain = Ring([Device(opened.transports[0], CONFIG.replace(features=()), name="node")])
        with pytest.raises(ValueError, match=r"^Nodes must have quantization in their configuration, to infer$"):
            plain.inference.infer(digits(), inputs(1))


# --- tests of complete nodes


@pytest.mark.parametrize("variant", ["min", "max"])
@pytest.mark.parametrize("bits", [4, 8])
def test_two_layers(ring, bits, variant):
    """Each of two nodes infers its batch in several commands, the last one with a different number of samples."""
    changes = {} if variant == "min" else {"variant": "max", "offsets": (1 << bits) - 1 >> 1}
    layers = digits(bits, **changes)
    x = inputs(201)
    outcome = ring.inference.infer(layers, x)
    np.testing.assert_array_equal(outcome.outputs, infer(layers, x))
    compiled = program(layers, lanes=4, gradient_words=CONFIG.memories.gradient, weight_words=CONFIG.memories.weight)
    assert compiled.beats == 32 * 4 + 10 * 2
    assert outcome.multiplied == 201 * compiled.beats
    assert outcome.commands == -(-101 // compiled.samples) > 1
    assert len(np.unique(outcome.outputs)) > 100


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
def test_few_samples(ring, samples):
    """There may be fewer samples than nodes, and the inputs of both layers may be signed."""
    layers = [layer(19, 21, 4, relu=False, signed=True), layer(3, 19, 5, signed=True, last=True)]
    x = inputs(samples, 21, low=-128, high=128)
    outcome = ring.inference.infer(layers, x)
    np.testing.assert_array_equal(outcome.outputs, infer(layers, x))
    assert outcome.commands == 1


def test_buffers_beside_others(ring):
    """If lists and data are in the upper halves of memories, the lower halves are not touched, and sums match."""
    below = [np.arange(1024, dtype=np.float32) + rank for rank in range(2)]
    ring.memory.write_gradients(below)
    ring.memory.write_weights_of(below)
    layers = [layer(19, 21, 4, relu=False, signed=True), layer(3, 19, 5, signed=True, last=True)]
    x = inputs(30, 21, low=-128, high=128)
    data, lists = Buffer("gradients", 1024, 1024), Buffer("weights", 1056, 960)
    outcome = ring.inference.infer(layers, x, data=data, lists=lists)
    np.testing.assert_array_equal(outcome.outputs, infer(layers, x))
    np.testing.assert_array_equal(ring.memory.read_gradients(1024), below)
    np.testing.assert_array_equal(ring.memory.read_weights(1024), below)
    with pytest.raises(ValueError, match=r"^Layers and their codes must take at most the 32 words of a node"):
        ring.inference.infer(layers, x, lists=Buffer("weights", 1024, 32))


def test_no_sample(ring):
    outcome = ring.inference.infer(digits(), np.zeros((0, 64), int))
    assert (outcome.outputs.shape, outcome.cycles, outcome.commands) == ((0, 10), 0, 0)


def test_nearly_all_cycles_multiply(ring):
    """For two layers of 64 x 64 weights, a node multiplies in at least 98 % of its cycles."""
    layers = [layer(64, 64, 6, bits=4), layer(64, 64, 7, bits=4, last=True)]
    compiled = program(layers, lanes=4, **WORDS)
    x = inputs(2 * compiled.samples)
    outcome = ring.inference.infer(layers, x)
    np.testing.assert_array_equal(outcome.outputs, infer(layers, x))
    assert outcome.commands == 1
    peak = peak_cycles([(64, 64), (64, 64)], compiled.samples, lanes=4)
    assert outcome.multiplied == 2 * peak
    assert peak / outcome.cycles >= 0.98


def test_other_commands_beside(ring):
    """Sums of gradients before and after an inference equal the sums on nodes that never run one."""
    vectors = [np.arange(100, dtype=np.float32), np.ones(100, np.float32)]
    for _ in range(2):
        ring.memory.write_gradients(vectors)
        ring.collectives.all_reduce(100)
        np.testing.assert_array_equal(ring.memory.read_gradients(100), [vectors[0] + vectors[1]] * 2)
        np.testing.assert_array_equal(ring.inference.infer(digits(), inputs(5)).outputs, infer(digits(), inputs(5)))


def test_a_wrong_layer(ring):
    """An invalid layer is reported with its own status, and the nodes keep working."""
    compiled = program(digits(), lanes=4, **WORDS)
    words = compiled.weights.copy()
    words[LAYER_WORDS + 5] = 2044  # the memory then has no room for the results of the second layer
    device = ring.devices[1]
    device.submit_write_memory(Space.WEIGHT, 0, words).result()
    message = (r"infer failed: node 1: command with tag \d+ ended with BAD_LAYER: layer 1 is wrong: no inputs or "
               r"outputs or too many inputs, an address inside a memory row, parts that end beyond a memory for so "
               r"many samples, or a list without an end")
    with pytest.raises(RingError, match=f"^{message}$") as error:
        ring.commands.run_apart({1: Command(operation=Operation.INFER, length=2)})
    assert error.value.events[1].status is EventStatus.BAD_LAYER
    np.testing.assert_array_equal(ring.inference.infer(digits(), inputs(5)).outputs, infer(digits(), inputs(5)))


def test_a_base_that_is_none(ring):
    for base, status in ((31, EventStatus.BAD_BASE), (2080, EventStatus.BAD_BASE), (2048, EventStatus.BAD_LAYER)):
        with pytest.raises(RingError, match=status.name):
            ring.commands.run_apart({0: Command(operation=Operation.INFER, length=1, weight_base=base)})
