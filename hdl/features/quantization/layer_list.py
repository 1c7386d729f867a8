"""Memory layout of the layer list for INFER: a layer's entry, and an output's parameters."""

from amaranth.hdl import signed
from amaranth.lib import data

from hdl.features.quantization.arithmetic import ACCUMULATOR_BITS, MULTIPLIER_BITS, OFFSET_BITS, SHIFT_BITS

__all__ = ["LAYER_WORDS", "OUTPUT_WORDS", "layer_layout", "output_parameter_layout"]

LAYER_WORDS = 8
"""Number of words of a layer in the weight memory (:func:`layer_layout`)."""

OUTPUT_WORDS = 2
"""Number of words of the parameters of an output in the gradient memory (:func:`output_parameter_layout`)."""


def layer_layout():
    """Layout of an INFER layer: eight words with its shape and the addresses of its data.

    Addresses are in elements and aligned to memory rows. ``codes`` is in the weight memory, the rest in the gradient
    memory. Codes have 8 bits if ``wide``, otherwise 4; ``subtract`` makes weights Z - Q instead of Z + Q, ``signed``
    makes inputs int8, ``relu`` makes outputs uint8 instead of int8, and ``raw`` 32-bit sums. ``final`` marks the last
    layer of a list.
    """
    return data.StructLayout({
        "wide": 1, "subtract": 1, "signed": 1, "relu": 1, "raw": 1, "final": 1, "reserved": 10, "outputs": 16,
        "inputs": 16, "reserved_inputs": 16,
        "codes": 32,
        "source": 32,
        "parameters": 32,
        "target": 32,
        "reserved_end": 64,
    })


def output_parameter_layout():
    """Layout of one output's parameters, in two words: bias, multiplier, shift and offset."""
    return data.StructLayout({
        "bias": signed(ACCUMULATOR_BITS),
        "multiplier": MULTIPLIER_BITS, "shift": SHIFT_BITS, "offset": signed(OFFSET_BITS), "reserved": 1,
    })
