# amaranth: UnusedElaboratable=no
"""Tests of the INFER engine, connected to memories: hdl/features/quantization/engine.py."""

import functools
import itertools

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import EventStatus, Operation
from hdl.features.quantization.arithmetic import Form
from hdl.features.quantization.engine import InferenceEngine, counts_layout, infer_cycles, peak_cycles
from hdl.features.quantization.feature import Quantization
from hdl.features.quantization.layer_list import LAYER_WORDS, layer_layout
from hdl.features.quantization.layer_reader import INPUT_ROWS
from host.features.quantization.node_inference import pack_inputs, program, unpack_outputs
from sim.golden.features.quantization.quantization import Layer, infer
from sim.verilated.vectors import Unit
from tests.hdl import engines
from tests.hdl.engines import VERSION, Bench, command, content, fill

LANES = (1, 2, 4, 8)
MEMORIES = Memories(gradient=8192, weight=8192)
WORDS = {"gradient_words": MEMORIES.gradient, "weight_words": MEMORIES.weight}
FIELDS = {name: (field.offset, field.width) for name, field in layer_layout()}


@functools.cache
def unit(lanes, form=Form.ADJUSTED):
    config = NodeConfig(lanes=lanes, memories=MEMORIES, features=(Quantization(),))
    return Unit(Bench(InferenceEngine(config=config, form=form), config), name=f"InferBench{lanes}{form}")


run = functools.partial(engines.run, counts=counts_layout())


def layers_of(shapes, seed):
    """Draw random layers with the given (outputs, inputs) shapes."""
    generator = np.random.default_rng(seed)
    result, signed = [], bool(generator.random() < 0.3)
    for number, (outputs, inputs) in enumerate(shapes):
        bits = int(generator.choice([4, 8]))
        subtract, relu = generator.random(2) < 0.5
        offsets = generator.integers(0, 1 << bits, outputs)
        # This shift brings typical sums of random weights into the output range.
        shift = int(np.log2(40 * (1 << bits) * np.sqrt(inputs))) + 9
        result.append(Layer(
            codes=generator.integers(0, 1 << bits, (outputs, inputs)), offsets=offsets if subtract else -offsets,
            variant="max" if subtract else "min", bits=bits, bias=generator.integers(-9_000, 9_000, outputs),
            multiplier=generator.integers(1 << 14, 1 << 16, outputs),
            shift=generator.integers(shift - 1, shift + 2, outputs), relu=bool(relu), signed=signed,
            last=number == len(shapes) - 1))
        signed = not relu
    return result


class Case:
    """Memory contents, an INFER command and its expected results."""

    def __init__(self, lanes, layers, samples, seed):
        generator = np.random.default_rng(seed)
        self.lanes, self.layers, self.samples = lanes, layers, samples
        self.program = program(layers, lanes=lanes, **WORDS)
        assert samples <= self.program.samples
        self.x = generator.integers(0, 256, (samples, layers[0].inputs)) - 128 * layers[0].signed
        self.gradients = generator.integers(0, 1 << 32, MEMORIES.gradient, dtype=np.uint32)
        self.weights = generator.integers(0, 1 << 32, MEMORIES.weight, dtype=np.uint32)
        self.weights[:len(self.program.weights)] = self.program.weights
        self.gradients[:len(self.program.parameters)] = self.program.parameters
        inputs = pack_inputs(self.program, self.x)
        # Bytes after a sample's last input are ignored, so fill them with random values.
        padded = inputs.view(np.uint8).reshape(samples, -1)
        padded[:, layers[0].inputs:] = generator.integers(0, 256, (samples, padded.shape[1] - layers[0].inputs))
        self.gradients[self.program.source:self.program.source + len(inputs)] = inputs

    def command(self, **options):
        return command(**{"operation": Operation.INFER, "weight_base": 0, "length": self.samples, "tag": 9,
                          "rank": 200, "size": 0, "port": 3, "gradient_base": 77} | options)

    def field(self, number, name, value=None):
        """Return a field of a layer's list entry, or overwrite it with ``value``."""
        offset, width = FIELDS[name]
        word = LAYER_WORDS * number + offset // 32
        mask = (1 << width) - 1 << offset % 32
        if value is not None:
            self.weights[word] = (int(self.weights[word]) & ~mask) | (value << offset % 32 & mask)
        return (int(self.weights[word]) & mask) >> offset % 32

    def expected(self, count=None):
        """Return the expected gradient memory after the first ``count`` layers (default: all)."""
        memory, values = self.gradients.copy(), self.x
        bytes_per_row = 4 * self.lanes
        for number, layer in enumerate(self.layers[:count]):
            values = layer.outputs_of(values)
            raw = values.astype("<i4").view(np.uint8) if layer.last else (values & 0xFF).astype(np.uint8)
            rows = np.zeros((self.samples, -(-raw.shape[1] // bytes_per_row) * bytes_per_row), np.uint8)
            rows[:, :raw.shape[1]] = raw
            words = rows.reshape(-1).view("<u4")
            target = self.field(number, "target")
            memory[target:target + len(words)] = words
        return memory

    def cycles(self):
        return infer_cycles([(layer.outputs, layer.inputs) for layer in self.layers], self.samples, lanes=self.lanes)

    def fill(self, bench):
        bench.reset()
        fill(bench, 0, self.gradients)
        fill(bench, 1, self.weights)

    def check(self, bench, count=None):
        """Check the results of the first ``count`` layers and that the rest of memory is unchanged."""
        memory = content(bench, 0, len(self.gradients))
        np.testing.assert_array_equal(memory, self.expected(count))
        np.testing.assert_array_equal(content(bench, 1, len(self.weights)), self.weights)
        return memory


def random_shapes(generator, count):
    sizes = generator.integers(1, 70, count + 1)
    return [(int(outputs), int(inputs)) for inputs, outputs in itertools.pairwise(sizes)]


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"^Node must have quantization, not NodeConfig\(.*\)$"):
        InferenceEngine(config=NodeConfig())


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("seed", range(6))
def test_infer(lanes, seed):
    """Random networks of various widths, sizes, layer variants and sample counts give the golden results."""
    generator = np.random.default_rng(seed)
    layers = layers_of(random_shapes(generator, 1 + seed % 4), seed)
    samples = (1, 2, 3, 7, 12, 5)[seed]
    case = Case(lanes, layers, min(samples, program(layers, lanes=lanes, **WORDS).samples), seed)
    bench = unit(lanes)
    case.fill(bench)
    (ended,), counts = run(bench, case.command(), cycles=60_000 // lanes)
    memory = case.check(bench)
    beats = case.program.beats * case.samples
    assert ended == {"tag": 9, "status": EventStatus.OK, "flags": 0, "queue": 0, "detail": beats,
                     "cycles": ended["cycles"], "weight_version": VERSION}
    assert counts["command_cycles"] == ended["cycles"] >= case.cycles()
    target = case.program.target
    rows = -(-layers[-1].outputs // lanes) * lanes
    np.testing.assert_array_equal(unpack_outputs(case.program, memory[target:target + case.samples * rows]),
                                  infer(layers, case.x))


@pytest.mark.parametrize("form", Form)
def test_forms(form):
    layers = layers_of([(20, 33), (17, 20), (5, 17)], 3)
    case = Case(4, layers, 6, 3)
    bench = unit(4, form)
    case.fill(bench)
    (ended,), _ = run(bench, case.command(), cycles=9_000)
    assert ended["status"] == EventStatus.OK
    case.check(bench)


def _network(shapes, bits):
    generator = np.random.default_rng(8)
    return [Layer(generator.integers(0, 1 << bits, shape), -(1 << bits - 1), "min", bits, 0, 40_000, 24, True, False,
                  number == len(shapes) - 1) for number, shape in enumerate(shapes)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("lanes", "shapes", "samples"), [
    (4, [(64, 64)], 16), (4, [(64, 64), (64, 64)], 16), (4, [(64, 64), (64, 64), (10, 64)], 16),
    (4, [(32, 64), (10, 32)], 64), (8, [(64, 64), (64, 64)], 32), (2, [(64, 64), (64, 64)], 8),
    (1, [(64, 64), (32, 64)], 8),
])
def test_no_bubble(lanes, shapes, samples, bits):
    """Throughput is one beat per cycle across outputs, samples and layers, except at a command's start and end."""
    case = Case(lanes, _network(shapes, bits), samples, 9)
    bench = unit(lanes)
    case.fill(bench)
    (ended,), _ = run(bench, case.command(), cycles=30_000)
    case.check(bench)
    assert ended["status"] == EventStatus.OK
    assert ended["cycles"] == case.cycles()
    assert ended["detail"] == peak_cycles(shapes, samples, lanes=lanes)
    if shapes[0] == (64, 64):
        assert ended["detail"] / ended["cycles"] >= 0.98


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("reading", [0, 1])
@pytest.mark.parametrize("pattern", ["geometric", "freeze", "alternating"])
def test_stalls(lanes, reading, pattern):
    """Results are correct while the host reads a memory, and while command and event streams stall."""
    layers = layers_of([(20, 40), (9, 20)], 20 + lanes)
    case = Case(lanes, layers, 5, 7)
    bench = unit(lanes)
    case.fill(bench)
    ended, counts = run(bench, case.command(tag=1), case.command(tag=2, length=0), pattern=pattern, seed=lanes,
                        cycles=12_000, reading=reading)
    case.check(bench)
    assert [(each["tag"], each["status"]) for each in ended] == [(1, 0), (2, 0)]
    assert ended[1]["cycles"] == ended[1]["detail"] == 0
    assert counts["stall_memory"] > 0
    assert counts["command_cycles"] == ended[0]["cycles"]


def refused(case, number, **options):
    """Check that an invalid layer ends the command after all earlier layers and that the next command succeeds."""
    bench = unit(case.lanes)
    case.fill(bench)
    good = Case(case.lanes, layers_of([(3, 5)], 1), 2, 1)
    (ended,), _ = run(bench, case.command(**options), cycles=9_000)
    case.check(bench, number)
    assert (ended["status"], ended["detail"]) == (EventStatus.BAD_LAYER, number)
    fill(bench, 0, good.gradients)
    fill(bench, 1, good.weights)
    (ended,), _ = run(bench, good.command())
    assert ended["status"] == EventStatus.OK
    good.check(bench)


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("wrong", [
    {"outputs": 0}, {"inputs": 0}, {"inputs": 16 * INPUT_ROWS + 1}, {"inputs": 0xFFFF}, {"outputs": 0xFFFF},
    {"codes": 1}, {"codes": 8192}, {"codes": 1 << 31}, {"source": 2}, {"source": 8192}, {"source": 0xFFFF_FFFC},
    {"parameters": 3}, {"parameters": 8192}, {"target": 1}, {"target": 8192}, {"target": 0xFFFF_FFF0},
], ids=str)
def test_a_wrong_field(wrong, number):
    case = Case(4, layers_of([(9, 20), (7, 9), (12, 7)], 4), 3, 4)
    for name, value in wrong.items():
        case.field(number, name, value)
    refused(case, number)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", ["codes", "source", "parameters", "target"])
def test_the_last_place_that_fits(lanes, name):
    """The data of a layer may end at the last row of a memory, but not one row later."""
    layers = layers_of([(9, 20)], 5)
    rows = {"codes": 9 * -(-20 * layers[0].bits // (32 * lanes)), "source": 3 * -(-20 // (4 * lanes)),
            "parameters": -(-18 // lanes), "target": 3 * -(-9 // lanes)}
    for further in (0, 1):
        case = Case(lanes, layers, 3, 5)
        address = 8192 - (rows[name] - further) * lanes
        now = case.field(0, name)
        memory = case.weights if name == "codes" else case.gradients
        if not further:
            memory[address:] = memory[now:now + 8192 - address].copy()
        case.field(0, name, address)
        if further:
            refused(case, 0)
            continue
        bench = unit(lanes)
        case.fill(bench)
        (ended,), _ = run(bench, case.command())
        assert ended["status"] == EventStatus.OK
        case.check(bench)


@pytest.mark.parametrize("samples", [1 << 16, 0xFFFF_FFFF, 0xFFFF, 4000])
def test_too_many_samples(samples):
    refused(Case(4, layers_of([(9, 20), (7, 9)], 6), 3, 6), 0, length=samples)


def test_a_list_without_an_end():
    """A list that runs past the end of memory fails at the first missing layer."""
    case = Case(4, layers_of([(9, 20), (7, 9)], 7), 3, 7)
    case.field(1, "final", 0)
    bench = unit(4)
    start = 8192 - 2 * LAYER_WORDS
    case.weights[start:] = case.weights[:2 * LAYER_WORDS]
    case.fill(bench)
    (first, second), _ = run(bench, case.command(weight_base=start), case.command(weight_base=8192), cycles=9_000)
    case.check(bench)
    assert [(each["status"], each["detail"]) for each in (first, second)] == [
        (EventStatus.BAD_LAYER, 2), (EventStatus.BAD_LAYER, 0)]


def test_one_after_the_other():
    """Alternating valid and invalid commands do not influence each other."""
    case = Case(4, layers_of([(9, 20), (7, 9)], 8), 3, 8)
    bench = unit(4)
    case.fill(bench)
    bad = case.command(weight_base=8192)
    ended, _ = run(bench, case.command(), bad, case.command(), case.command(length=0), bad, case.command(),
                   cycles=9_000)
    assert [each["status"] for each in ended] == [0, EventStatus.BAD_LAYER, 0, 0, EventStatus.BAD_LAYER, 0]
    assert ended[0] == ended[2] == ended[5]
    # If the second layer overwrote the inputs of the first, later commands would read different inputs.
    assert ended[0]["detail"] == case.program.beats * 3
