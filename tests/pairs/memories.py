"""Memories of nodes before commands are played: random data, and the lists that local commands need.

The lower part of each memory is for data. Behind it are the lists of local commands in the weight memory, and the
parameters of layers in the gradient memory, which no command may change.
"""

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from hdl.control.protocol import Space
from hdl.masking.mask import KINDS as MASK_KINDS
from hdl.quantization.layer_list import LAYER_WORDS
from host.driver.inference import program
from host.driver.masking import Mask, MaskJob, plan
from sim.golden import masking, quantization
from tests.pairs.model import Programs

__all__ = ["CONFIG", "DATA", "contents"]

Words = npt.NDArray[np.uint32]

#: Configuration of the nodes: every engine, programs, one state plane, segments short enough for several in a block.
CONFIG = NodeConfig(gradient_words=2048, weight_words=2048, state_words=512, state_planes=1, segment=64,
                    quantization=True, stand_in=True, queues=2, program_depth=8)

#: Elements of the gradient and the weight memory that commands change.
DATA = 768

_MASK_LISTS, _LAYER_LISTS = 4, 2
_LIST = 32  # words of a list of masks
_LAYER = 64  # words of a list of one layer, with its codes
_LAYERS = DATA + _LIST * _MASK_LISTS  # address of the first list of layers


def contents(seed: int, nodes: int) -> tuple[list[Words], Programs]:
    """Random memories of all nodes, with the lists in them."""
    generator = np.random.default_rng(seed)
    memories = []
    for words in (space.words for space in CONFIG.memories if space.name != "trace"):
        values = generator.standard_normal((nodes, words)).astype(np.float32)
        values[generator.random((nodes, words)) < generator.choice([0.0, 0.5, 0.95])] = 0
        memories.append(values.view(np.uint32))
    masks, layers = {}, {}
    for number in range(_MASK_LISTS):
        base = DATA + _LIST * number
        job = _mask(generator)
        region, = plan([job], lanes=CONFIG.lanes, elements=CONFIG.gradient_words, words=CONFIG.weight_words)
        memories[Space.WEIGHT][:, base:base + _LIST] = region.words[:_LIST]
        masks[base] = masking.Job(rows=job.rows, columns=job.columns, count=job.count,
                                  mask=masking.Mask(**vars(job.mask)))
    for number in range(_LAYER_LISTS):
        base, parameters = _LAYERS + _LAYER * number, DATA + 32 * number
        layer = quantization.Layer(
            generator.integers(0, 16, (8, 24)), -8, "min", 4, generator.integers(-500, 500, 8), 0, 1, False, False,
            True)
        given = program([layer], lanes=CONFIG.lanes, gradient_words=CONFIG.gradient_words,
                        weight_words=CONFIG.weight_words)
        source, target = (int(32 * place) for place in generator.choice(DATA // 64, 2, replace=False))
        target += DATA // 2 - DATA // 2 % 32
        words = given.weights.copy()
        # Words 2 to 5 of a layer are the addresses of its codes, inputs, parameters and outputs.
        words[2:6] = base + LAYER_WORDS * 4, source, parameters, target
        memories[Space.WEIGHT][:, base:base + len(words)] = words
        memories[Space.GRADIENT][:, parameters:parameters + len(given.parameters)] = given.parameters
        layers[base] = layer, source, target
    return memories, Programs(masks=masks, layers=layers)


def _mask(generator: np.random.Generator) -> MaskJob:
    rows, columns, count = int(generator.integers(1, 9)), 4 * int(generator.integers(1, 5)), 1
    count = int(generator.integers(1, 4))
    kinds = {name: bool(generator.random() < 0.3) for name in MASK_KINDS}
    numbers = {name: int(generator.integers(0, 17)) for name in (
        "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")}
    external = generator.random((count, rows, columns)) < 0.5 if kinds["external"] else None
    return MaskJob(matrices=np.zeros((count, rows, columns), np.float32), external=external,
                   mask=Mask(**kinds, **numbers, diagonal=int(generator.integers(-8, 9))))
