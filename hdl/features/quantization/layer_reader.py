"""Reader for a list of layers in memory, which checks that the node can run each layer."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.features.quantization.layer_list import LAYER_WORDS, layer_layout
from hdl.streams.stream import beat_layout

__all__ = ["INPUT_ROWS", "LayerReader", "checked_layer_layout", "flags_layout"]

INPUT_ROWS = 256
"""Maximum memory rows for the inputs of a sample."""

#: Width in bits of each of a layer's sizes, such as its number of inputs.
_BITS = 16


def flags_layout():
    """Flags common to all beats of a layer, named as in
    :func:`~hdl.features.quantization.layer_list.layer_layout`."""
    return data.StructLayout({"wide": 1, "subtract": 1, "signed": 1, "relu": 1, "raw": 1})


def checked_layer_layout(config):
    """Layout of a checked layer: the first memory row and the size of each part.

    ``input_rows`` is the number of input rows per sample and of beats per output; ``tail`` marks the bytes of the
    last row that contain inputs.
    """
    lanes = config.lanes
    gradient_rows, weight_rows = config.memories.gradient // lanes, config.memories.weight // lanes
    return data.StructLayout({
        "flags": flags_layout(), "final": 1,
        "outputs": _BITS, "input_rows": range(INPUT_ROWS + 1), "tail": 4 * lanes,
        "code_row": range(weight_rows), "code_elements": range(config.memories.weight + 1),
        "source_row": range(gradient_rows),
        "parameter_row": range(gradient_rows), "parameter_elements": range(config.memories.gradient + 1),
        "target_row": range(gradient_rows),
    })


class LayerReader(wiring.Component):
    """Read the layers of a list one at a time, and offer each valid layer until the final one.

    A layer is invalid

    - if it has no inputs or outputs, or more inputs than :data:`INPUT_ROWS` memory rows;
    - if one of its addresses is not the start of a memory row;
    - if its codes, or the regions of the gradient memory that it reads and writes, end beyond the memory;
    - if the number of samples exceeds 16 bits;
    - if the list ends before the layer.

    Reserved bits are ignored. A layer is offered :meth:`latency` cycles after its first beat was accepted.
    ``i.ready`` depends only on registers, and ``o`` is registered.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    start : In(1)
        Start reading a list. Only the first start after a reset has an effect.
    samples : In(32)
        Number of samples, held from ``start`` on.
    empty : In(1)
        Whether the list is empty, so that no beat will arrive; sampled with ``start``.
    i : In(stream of beat_layout(lanes))
        Words of the list; its last beat has ``last``.
    o : Out(stream of checked_layer_layout(config))
    bad : Out(1)
        Whether the next layer is invalid; no further layer is offered.
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            "start": In(1),
            "samples": In(32),
            "empty": In(1),
            "i": In(stream.Signature(beat_layout(config.lanes))),
            "o": Out(stream.Signature(checked_layer_layout(config))),
            "bad": Out(1),
        })

    @staticmethod
    def latency(*, lanes):
        """Latency in cycles from the first beat of a layer's list entry to the offer of the layer."""
        return LAYER_WORDS // lanes + 13

    def elaborate(self, platform):
        m = Module()
        lanes = self._config.lanes
        lane_bits = exact_log2(lanes)
        gradient_rows, weight_rows = self._config.memories.gradient // lanes, self._config.memories.weight // lanes

        layer = Signal(layer_layout())
        beats_in = LAYER_WORDS // lanes
        beat = Signal(range(max(beats_in, 2)))
        ended = Signal()
        wrong = Signal()
        checked = self.o.payload

        def rows_of(count, per_row):
            return (count + (per_row - 1)) >> exact_log2(per_row)

        # The end of each region (first row plus count times rows) is compared with its memory's size, one at a time.
        step = Signal(range(4))
        input_rows, code_rows = Signal(_BITS), Signal(_BITS)
        parameter_rows, output_rows = Signal(_BITS + 1), Signal(_BITS)
        samples = self.samples[:_BITS]
        counts = Array([layer.outputs, samples, 1, samples])
        each = Array([code_rows, input_rows, parameter_rows, output_rows])
        bases = Array([layer.codes, layer.source, layer.parameters, layer.target])
        limits = Array([weight_rows, gradient_rows, gradient_rows, gradient_rows])
        product = Signal(2 * _BITS + 1)
        reach = Signal(34)
        latest = Signal(lane_bits + 2)  # position of the last input within its row

        addresses = ("code_row", layer.codes), ("source_row", layer.source), (
            "parameter_row", layer.parameters), ("target_row", layer.target)
        m.d.comb += [
            *(checked.flags[name].eq(layer[name]) for name in flags_layout().members),
            *(checked[name].eq(address >> lane_bits) for name, address in addresses),
            checked.final.eq(layer.final),
            checked.outputs.eq(layer.outputs),
            checked.input_rows.eq(input_rows),
            checked.parameter_elements.eq(layer.outputs << 1),
            latest.eq(layer.inputs - 1),
            *(checked.tail[n].eq(latest >= n) for n in range(4 * lanes)),
        ]
        misplaced = Cat(address[:lane_bits].any() for _, address in addresses).any()

        with m.FSM():
            with m.State("Idle"):
                with m.If(self.start):
                    m.d.sync += [ended.eq(self.empty), wrong.eq(self.samples[_BITS:].any())]
                    m.next = "Fetch"

            with m.State("Fetch"):
                m.d.comb += self.i.ready.eq(~ended)
                with m.If(ended):
                    m.next = "Bad"
                with m.Elif(self.i.valid):
                    m.d.sync += [
                        layer.eq(Cat(layer.as_value()[32 * lanes:], self.i.payload.elements)),
                        beat.eq(Mux(beat == beats_in - 1, 0, beat + 1)),
                    ]
                    with m.If(beat == beats_in - 1):
                        m.d.sync += ended.eq(self.i.payload.last)
                        m.next = "Rows"

            with m.State("Rows"):
                rows = rows_of(layer.inputs, 4 * lanes)
                m.d.sync += [
                    input_rows.eq(rows),
                    code_rows.eq(Mux(layer.wide, rows, (rows + 1) >> 1)),
                    parameter_rows.eq(rows_of(layer.outputs << 1, lanes)),
                    output_rows.eq(Mux(layer.raw, rows_of(layer.outputs, lanes), rows_of(layer.outputs, 4 * lanes))),
                    wrong.eq(wrong | ~layer.inputs.any() | ~layer.outputs.any() | misplaced),
                    step.eq(0),
                ]
                m.next = "Multiply"

            with m.State("Multiply"):
                m.d.sync += [product.eq(counts[step] * each[step]), wrong.eq(wrong | (input_rows > INPUT_ROWS))]
                m.next = "Add"

            with m.State("Add"):
                m.d.sync += reach.eq(product + (bases[step] >> lane_bits))
                with m.If(step == 0):
                    m.d.sync += checked.code_elements.eq(product.shift_left(lane_bits))
                m.next = "Compare"

            with m.State("Compare"):
                m.d.sync += [step.eq(step + 1), wrong.eq(wrong | (reach > limits[step]))]
                m.next = "Multiply"
                with m.If(step == 3):
                    m.next = "Offer"
                    with m.If(wrong | (reach > limits[step])):
                        m.next = "Bad"

            with m.State("Offer"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "Fetch"
                    with m.If(layer.final):
                        m.next = "End"

            with m.State("Bad"):
                m.d.comb += self.bad.eq(1)

            with m.State("End"):
                pass

        return m
