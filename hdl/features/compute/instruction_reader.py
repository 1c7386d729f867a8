"""Reader for the instruction list of a LAYERS command."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import request_layout, response_layout
from hdl.features.compute.layer_list import INSTRUCTION_WORDS, MAX_INSTRUCTIONS, Kind, Place, instruction_layout

__all__ = ["InstructionReader", "listed_layout"]


def listed_layout():
    """Payload with the words and the number of a listed instruction."""
    return data.StructLayout({"instruction": instruction_layout(), "number": range(MAX_INSTRUCTIONS)})


class InstructionReader(wiring.Component):
    """Read the instructions of a list one by one, up to its END.

    The next instruction is read once the previous one has been accepted, so no response is pending while an
    instruction is offered. If :data:`~hdl.features.compute.layer_list.MAX_INSTRUCTIONS` or the end of
    memory is reached without an END, ``bad`` rises in the cycle that would read the missing instruction.

    The first request for an instruction is offered two cycles after ``start`` or the previous instruction's
    transfer; the instruction is offered in the cycle after its last response. Outputs are functions of registers.

    Parameters
    ----------
    rows : int
        Number of rows of the activation memory, which holds the list.
    memory_rows : int
        Number of rows of the largest memory.
    lanes : int
        Number of elements in a row: 2, 4 or 8.

    Members
    -------
    start : In(1)
        Start a list. Ignored between the first instruction of a list and its END.
    row : In(range(rows + 1))
        First row of the list; must be held from ``start`` on.
    request : Out(stream of request_layout(memory_rows))
    response : In(stream of response_layout(lanes))
    o : Out(stream of listed_layout())
    bad : Out(1)
        High from the detection of a missing instruction until the next reset.
    number : Out(range(MAX_INSTRUCTIONS + 1))
        Number of the current instruction, or of the missing one.
    """

    def __init__(self, *, rows, memory_rows, lanes):
        if lanes not in (2, 4, 8):
            raise ValueError(f"Lane count must be 2, 4 or 8, not {lanes!r}")
        self._rows = rows
        self._lanes = lanes
        super().__init__({
            "start": In(1),
            "row": In(range(rows + 1)),
            "request": Out(stream.Signature(request_layout(memory_rows))),
            "response": In(stream.Signature(response_layout(lanes))),
            "o": Out(stream.Signature(listed_layout())),
            "bad": Out(1),
            "number": Out(range(MAX_INSTRUCTIONS + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        rows, per_instruction = self._rows, INSTRUCTION_WORDS // self._lanes
        words = Signal(32 * INSTRUCTION_WORDS, reset_less=True)
        row = Signal(range(rows + per_instruction + 1))
        last = per_instruction - 1
        asked, answered = Signal(range(per_instruction)), Signal(range(per_instruction))
        asking = Signal()
        m.d.comb += [
            self.request.payload.as_value().eq(Cat(Const(Place.ACTIVATIONS.value, 2), row)),
            self.o.payload.instruction.eq(words),
            self.o.payload.number.eq(self.number),
        ]
        with m.FSM():
            with m.State("Idle"):
                m.d.sync += [row.eq(self.row), self.number.eq(0)]
                with m.If(self.start):
                    m.next = "Look"

            with m.State("Look"):
                m.d.sync += asking.eq(1)
                m.next = "Fetch"
                with m.If((row > rows - per_instruction) | (self.number == MAX_INSTRUCTIONS)):
                    m.next = "Bad"

            with m.State("Fetch"):
                m.d.comb += [self.request.valid.eq(asking), self.response.ready.eq(1)]
                with m.If(self.request.valid & self.request.ready):
                    m.d.sync += [row.eq(row + 1), asked.eq(Mux(asked == last, 0, asked + 1)),
                                 asking.eq(asked != last)]
                with m.If(self.response.valid):
                    m.d.sync += [
                        words.eq(Cat(words[32 * self._lanes:], self.response.payload.elements)),
                        answered.eq(Mux(answered == last, 0, answered + 1)),
                    ]
                    with m.If(answered == last):
                        m.next = "Offer"

            with m.State("Offer"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += self.number.eq(self.number + 1)
                    m.next = "Look"
                    with m.If(self.o.payload.instruction.kind == Kind.END):
                        m.next = "Idle"

            with m.State("Bad"):
                m.d.comb += self.bad.eq(1)

        return m
