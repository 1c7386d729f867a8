"""Gateware units for your own designs, in Amaranth or as Verilog with AXI4-Stream ports.

::

    from gradring import gateware

    m.submodules.encoder = encoder = gateware.ZeroValueEncoder(lanes=4)
    text = gateware.wrap(design, name="my_design").text

:data:`UNITS` maps names to the units for :func:`write`; a unit's ``target`` is the path of its class.
"""

from boards.units import UNITS
from boards.verilog import design, wrap, write
from hdl.compression.zero_value.adder import Adder as ZeroValueAdder
from hdl.compression.zero_value.decoder import Decoder as ZeroValueDecoder
from hdl.compression.zero_value.encoder import Encoder as ZeroValueEncoder
from hdl.floating.add import FloatAdder
from hdl.floating.compare import FloatComparator
from hdl.floating.divide import FloatDivider
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.square_root import FloatSquareRoot
from hdl.masking.circuit import MaskCircuit
from hdl.streams.stream import Queue, SkidBuffer, beat_layout, connect_stream, word_layout

__all__ = ["UNITS", "FloatAdder", "FloatComparator", "FloatDivider", "FloatMultiplier", "FloatSquareRoot",
           "MaskCircuit", "Queue", "SkidBuffer", "ZeroValueAdder", "ZeroValueDecoder", "ZeroValueEncoder",
           "beat_layout", "connect_stream", "design", "word_layout", "wrap", "write"]
