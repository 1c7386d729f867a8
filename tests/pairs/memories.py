"""Initial node memories: random data and the lists that local commands need.

The lower part of each memory is for data. The upper part, which no command may change, holds lists for local commands
in the weight memory, layer parameters in the gradient memory, and labels and instruction lists in the activation
memory.
"""

import numpy as np
import numpy.typing as npt

from hdl.config import Memories, NodeConfig, RootReduce
from hdl.control.protocol import Space
from hdl.features.compute.feature import Compute
from hdl.features.compute.layer_list import (
    INSTRUCTION_WORDS,
    Initial,
    Kind,
    Place,
    VectorProgram,
    gemm_layout,
    vector_layout,
)
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.programs.feature import Programs
from hdl.features.quantization.feature import Quantization
from hdl.features.quantization.layer_list import LAYER_WORDS
from hdl.features.tenants.feature import Tenants
from hdl.features.throttles.feature import Throttles
from hdl.group import GROUP
from hdl.masking.mask import KINDS as MASK_KINDS
from host.driver.masking import Mask, MaskJob, plan
from host.features.quantization.node_inference import program
from sim.golden import masking
from sim.golden.features.compute.compute import pack
from sim.golden.features.quantization import quantization
from tests.pairs import model

Words = npt.NDArray[np.uint32]

#: Configuration of the nodes: every engine, programs, one state plane, segments so short that blocks have several,
#: tenants, buffer tags and two program banks.
CONFIG = NodeConfig(
    segment=64, topology=Grid(), memories=Memories(gradient=2048, weight=2048, state=512, planes=1),
    role=RootReduce(), programs=Programs(depth=32, banks=2),
    compute=Compute(rows=1, activations=512, scale_mask=True, buffer_tags=True), stub=ComputeStub(),
    features=(Quantization(), Throttles(), Tenants()))

#: Number of elements at the start of gradient and weight memories that commands may change.
DATA = 768

_MASK_LISTS, _LAYER_LISTS = 4, 2
_LIST = 32  # words in a list of masks
_LAYER = 64  # words in the list of one layer, and in this layer's codes
_LAYERS = DATA + _LIST * _MASK_LISTS  # address of the first list of layers

_ACTIVATIONS = CONFIG.memory_map["activations"].number
_LABELS = 256  # address of labels, which follow all activations
_INSTRUCTIONS = 288  # address of the first list of instructions
_EXAMPLES = 6  # maximum number of examples for a list
_INPUTS, _OUTPUTS = 8, 5


def contents(seed: int, nodes: int) -> tuple[list[Words], model.Programs]:
    """Random contents of the memories of all nodes, including lists of mask jobs, layers and instructions."""
    generator = np.random.default_rng(seed)
    memories = []
    for words in (space.words for space in CONFIG.memory_map if space.name != "trace"):
        values = generator.standard_normal((nodes, words)).astype(np.float32)
        values[generator.random((nodes, words)) < generator.choice([0.0, 0.5, 0.95])] = 0
        memories.append(values.view(np.uint32))
    masks, layers = {}, {}
    for number in range(_MASK_LISTS):
        base = DATA + _LIST * number
        job = _mask(generator)
        region, = plan([job], lanes=CONFIG.lanes, elements=CONFIG.memories.gradient, words=CONFIG.memories.weight)
        memories[Space.WEIGHT][:, base:base + _LIST] = region.words[:_LIST]
        masks[base] = masking.Job(rows=job.rows, columns=job.columns, count=job.count,
                                  mask=masking.Mask(**vars(job.mask)))
    for number in range(_LAYER_LISTS):
        base, parameters = _LAYERS + _LAYER * number, DATA + 32 * number
        layer = quantization.Layer(
            generator.integers(0, 16, (8, 24)), -8, "min", 4, generator.integers(-500, 500, 8), 0, 1, False, False,
            True)
        compiled = program([layer], lanes=CONFIG.lanes, gradient_words=CONFIG.memories.gradient,
                           weight_words=CONFIG.memories.weight)
        source, target = (int(32 * group) for group in generator.choice(DATA // 64, 2, replace=False))
        target += DATA // 2 - DATA // 2 % 32
        words = compiled.weights.copy()
        # Words 2 to 5 of a layer's entry are the addresses of its codes, inputs, parameters and outputs.
        words[2:6] = base + LAYER_WORDS * 4, source, parameters, target
        memories[Space.WEIGHT][:, base:base + len(words)] = words
        memories[Space.GRADIENT][:, parameters:parameters + len(compiled.parameters)] = compiled.parameters
        layers[base] = layer, source, target
    activations = memories[_ACTIVATIONS]
    activations[:, _LABELS:_LABELS + _EXAMPLES] = generator.integers(0, _OUTPUTS, _EXAMPLES)
    right, wrong = (_INSTRUCTIONS + 3 * GROUP * number for number in range(2))
    flaw = int(generator.integers(3))
    for base, words in ((right, _instructions(generator)), (wrong, _instructions(generator, flaw=flaw))):
        activations[:, base:base + len(words)] = words
    return memories, model.Programs(masks=masks, layers=layers, lists={right: _EXAMPLES}, wrong=wrong)


def _instructions(generator: np.random.Generator, *, flaw: int | None = None) -> Words:
    """Instruction list that computes a layer's scores, their loss and its gradients. With ``flaw``, a reserved bit is
    set."""
    def at(memory: Place, base: int, relative: int = 1) -> dict[str, int]:
        return {"place": memory, "base": base, "relative": relative}

    x, scores, delta, loss = (at(Place.ACTIVATIONS, base) for base in (0, 48, 96, 144))
    product = {"kind": Kind.GEMM, "tile": 2, "row_tiles": 1, "column_tiles": 1, "rounds": 3}
    instructions = [
        pack(gemm_layout(), {
            **product, "k": _INPUTS, "n": _OUTPUTS, "transpose_b": 1, "initial": Initial.MATRIX,
            "a": x, "stride_a": 8, "b": at(Place.WEIGHTS, 0, 0), "stride_b": 8, "c": scores, "stride_c": 8,
            "start": at(Place.WEIGHTS, 8 * _OUTPUTS, 0),
            "scaled": int(generator.integers(2)), "scale": 0x3EAAAAAB,  # encoding of one third
            "masked": int(generator.integers(2)), "alternative": 0xC61C4000,  # encoding of -10,000
            "triangle": 1, "diagonal": int(generator.integers(_OUTPUTS))}),
        pack(vector_layout(), {
            "kind": Kind.VECTOR, "function": VectorProgram.CROSS_ENTROPY, "columns": _OUTPUTS,
            "source": scores, "stride_source": 8, "labels": at(Place.ACTIVATIONS, _LABELS, 0), "stride_labels": 1,
            "target": delta, "stride_target": 8, "loss": loss}),
        pack(gemm_layout(), {
            **product, "m": _OUTPUTS, "n": _INPUTS, "transpose_a": 1, "a": delta, "stride_a": 8,
            "b": x, "stride_b": 8, "c": at(Place.GRADIENTS, 0), "stride_c": 8}),
    ]
    if flaw is not None:
        instructions[flaw][INSTRUCTION_WORDS - 1] = 1 << 31
    return np.concatenate([*instructions, np.zeros(INSTRUCTION_WORDS, np.uint32)])


def _mask(generator: np.random.Generator) -> MaskJob:
    rows, columns, count = int(generator.integers(1, 9)), 4 * int(generator.integers(1, 5)), 1
    count = int(generator.integers(1, 4))
    kinds = {name: bool(generator.random() < 0.3) for name in MASK_KINDS}
    numbers = {name: int(generator.integers(0, 17)) for name in (
        "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")}
    external = generator.random((count, rows, columns)) < 0.5 if kinds["external"] else None
    return MaskJob(matrices=np.zeros((count, rows, columns), np.float32), external=external,
                   mask=Mask(**kinds, **numbers, diagonal=int(generator.integers(-8, 9))))
