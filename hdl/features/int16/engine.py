"""Engine of the int16 node, which runs one command at a time, element by element."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, Operation
from hdl.features.int16.arithmetic import Arithmetic, Term
from hdl.features.int16.memory import WIDTH, port_signature
from hdl.features.int16.queue import engine_signature
from hdl.group import GROUP
from hdl.optimizer.fixed_point import SCALAR_WIDTH

__all__ = ["COUNTERS", "Engine", "sparsify_cycles", "update_cycles"]

#: Names of the engine's counter registers.
COUNTERS = ("compressed_words", "elements_encoded", "command_cycles", "elements_masked")

#: Maximum number of half words in a compressed group: the mask and the values.
_HALVES = GROUP // WIDTH + GROUP


def update_cycles(length, nonzero):
    """Cycle count in a FUSED_UPDATE event, if ``nonzero`` of the ``length`` gradients are not zero."""
    groups, halves = -(-length // GROUP), -(-length // WIDTH)
    return (2 * GROUP + 2) * groups + 2 * halves + length + 4 * nonzero + 1


def sparsify_cycles(length):
    """Cycle count in a SPARSIFY event for ``length`` elements."""
    return 3 * length + 1


class Engine(wiring.Component):
    """Run FUSED_UPDATE and SPARSIFY on the memories of an int16 node.

    FUSED_UPDATE processes gradients in groups of 32. A group is encoded into a buffer as half words of zero-value
    compression (its mask, then its nonzero values). It is decoded from there, and each value updates its weight;
    zeros are skipped, since they would change nothing. SPARSIFY takes three cycles per element.

    The memories serve the engine in every cycle when it accesses them.

    Parameters
    ----------
    config : NodeConfig
        An :class:`~hdl.features.int16.feature.Int16Config`.

    Members
    -------
    word, fields, operation, start, done, status, detail
        Ports to :class:`~hdl.features.int16.queue.CommandQueue`, which has checked the command. From ``start`` to
        ``done`` it takes :func:`update_cycles` or :func:`sparsify_cycles`, or 1 if the length is zero. The detail is
        the number of elements dropped by SPARSIFY.
    gradient_scale, learning_rate : In(18)
        Signed fixed-point settings with 16 fraction bits.
    threshold : In(16)
        Minimum magnitude of the elements that SPARSIFY keeps.
    link_reset : In(1)
        While this is high, FUSED_UPDATE ends with LINK_RESET at its next gradient.
    weight_version : Out(32)
        Number of commands that have changed weights since reset.
    count : Out(struct of one bit for each of COUNTERS)
        Counter increments; the last one belongs to SPARSIFY and is absent without it.
    gradients, weights : Out(port_signature)
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            **engine_signature(config).flip().members,
            "gradient_scale": In(SCALAR_WIDTH),
            "learning_rate": In(SCALAR_WIDTH),
            "threshold": In(WIDTH),
            "link_reset": In(1),
            "weight_version": Out(32),
            "count": Out(data.StructLayout(dict.fromkeys(COUNTERS[:3 + config.sparsify], 1))),
            "gradients": Out(port_signature(config.memories.gradient)),
            "weights": Out(port_signature(config.memories.weight)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.arithmetic = arithmetic = Arithmetic()
        m.submodules.buffer = buffer = Memory(shape=WIDTH, depth=_HALVES, init=[], attrs={"no_rw_check": 1})
        store, fetch = buffer.write_port(), buffer.read_port(transparent_for=())
        gradients, weights = self.gradients, self.weights

        left = Signal(range(self._config.memories.gradient + 1))  # elements left, including the current one
        position = Signal(range(GROUP))  # index of the element in its group
        marks = Signal(WIDTH)
        slot = Signal(range(_HALVES))  # index of the next value in the buffer
        value = Signal(signed(WIDTH))
        fused = Signal()
        # Settings, sampled when the command starts; ``first`` is a scale or a threshold.
        first, rate = Signal(SCALAR_WIDTH), Signal(SCALAR_WIDTH)
        inside = Signal()
        nonzero = Signal()

        m.d.comb += [
            fused.eq(self.operation == Operation.FUSED_UPDATE),
            inside.eq((left[5:] != 0) | (position < left[:5])),
            nonzero.eq((gradients.q != 0) & inside),
            fetch.en.eq(1),
            fetch.addr.eq(slot),
            store.addr.eq(slot),
            store.data.eq(gradients.q),
            arithmetic.base.eq(weights.q),
            arithmetic.factor.eq(first),
            arithmetic.value.eq(fetch.data),
            weights.data.eq(arithmetic.o),
        ]
        with m.If(self.fields.gradient_base):
            m.d.sync += gradients.address.eq(self.word)
        with m.If(self.fields.weight_base):
            m.d.sync += weights.address.eq(self.word)
        with m.If(self.fields.length):
            m.d.sync += left.eq(self.word)

        sparsifies = self._config.sparsify
        if sparsifies:
            kept = Signal()
            dropped = Signal.like(left)
            m.d.comb += [
                kept.eq(abs(value) >= first[:WIDTH]),
                arithmetic.addend.eq(gradients.q),
                gradients.data.eq(Mux(kept, value, 0)),
                self.detail.eq(dropped),
            ]

        def advance():
            """Advance to the next element of the group that is being decoded."""
            m.d.sync += [
                marks.eq(marks >> 1), position.eq(position + 1), left.eq(left - 1),
                weights.address.eq(weights.address + 1),
            ]
            m.next = "Look"
            with m.If(left == 1):
                m.next = "End"
            with m.Elif(position == GROUP - 1):
                m.d.sync += slot.eq(GROUP // WIDTH)
                m.next = "Read"
            with m.Elif(position == WIDTH - 1):
                m.next = "Load"

        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.sync += [
                    position.eq(0),
                    slot.eq(GROUP // WIDTH),
                    first.eq(self.gradient_scale),
                    rate.eq(self.learning_rate),
                ]
                with m.If(self.start):
                    m.next = "End"
                    with m.If(left != 0):
                        with m.If(fused):
                            m.next = "Read"
                        if sparsifies:
                            with m.If(self.operation == Operation.SPARSIFY):
                                m.next = "Gather"
                if sparsifies:
                    m.d.sync += dropped.eq(0)
                    with m.If(~fused):
                        m.d.sync += first.eq(self.threshold)

            # Encode a group of gradients into the buffer.
            with m.State("Read"):
                m.d.comb += gradients.en.eq(1)
                m.next = "Pack"
                with m.If(self.link_reset):
                    m.d.comb += [self.done.eq(1), self.status.eq(EventStatus.LINK_RESET)]
                    m.next = "Idle"

            with m.State("Pack"):
                m.d.comb += [
                    store.en.eq(nonzero),
                    self.count.elements_encoded.eq(inside),
                    self.count.compressed_words.eq(nonzero & ~slot[0]),
                ]
                m.d.sync += [
                    marks.eq(Cat(marks[1:], nonzero)), slot.eq(slot + nonzero), position.eq(position + 1),
                    gradients.address.eq(gradients.address + 1),
                ]
                m.next = "Read"
                with m.If(position[:4] == WIDTH - 1):
                    m.next = "Mark"

            with m.State("Mark"):
                m.d.comb += [store.en.eq(1), store.addr.eq(~position[4]), store.data.eq(marks)]
                m.next = "Read"
                with m.If(position == 0):
                    m.d.comb += self.count.compressed_words.eq(1)
                    m.d.sync += slot.eq(GROUP // WIDTH)
                    m.next = "Load"

            # Decode the group from the buffer and update its weights.
            with m.State("Load"):
                m.d.comb += fetch.addr.eq(position[4])
                m.next = "Take"

            with m.State("Take"):
                m.d.sync += marks.eq(fetch.data)
                m.next = "Look"

            with m.State("Look"):
                with m.If(marks[0]):
                    m.d.sync += slot.eq(slot + 1)
                    m.next = "Scale"
                with m.Else():
                    advance()

            with m.State("Scale"):
                m.next = "Step"

            with m.State("Step"):
                m.d.comb += [arithmetic.term.eq(Term.PLUS_PRODUCT), arithmetic.base.eq(0)]
                m.d.sync += value.eq(arithmetic.o)
                m.next = "Rate"

            with m.State("Rate"):
                m.d.comb += [
                    arithmetic.factor.eq(rate), arithmetic.value.eq(value), weights.en.eq(1),
                ]
                m.next = "Move"

            with m.State("Move"):
                m.d.comb += [arithmetic.term.eq(Term.MINUS_PRODUCT), weights.en.eq(1), weights.write.eq(1)]
                advance()

            if sparsifies:
                with m.State("Gather"):
                    m.d.comb += [gradients.en.eq(1), weights.en.eq(1)]
                    m.next = "Add"

                with m.State("Add"):
                    m.d.comb += arithmetic.term.eq(Term.PLUS_ADDEND)
                    m.d.sync += value.eq(arithmetic.o)
                    m.next = "Part"

                with m.State("Part"):
                    m.d.comb += [
                        gradients.en.eq(1), gradients.write.eq(1),
                        weights.en.eq(1), weights.write.eq(1), weights.data.eq(Mux(kept, 0, value)),
                        self.count.elements_masked.eq(~kept),
                    ]
                    m.d.sync += [
                        left.eq(left - 1), dropped.eq(dropped + ~kept),
                        gradients.address.eq(gradients.address + 1), weights.address.eq(weights.address + 1),
                    ]
                    m.next = "Gather"
                    with m.If(left == 1):
                        m.next = "End"

            with m.State("End"):
                m.d.comb += self.done.eq(1)
                m.d.sync += self.weight_version.eq(self.weight_version + fused)
                m.next = "Idle"

        m.d.comb += self.count.command_cycles.eq(~fsm.ongoing("Idle"))
        return m
