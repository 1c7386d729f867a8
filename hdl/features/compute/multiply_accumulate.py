# amaranth: UnusedElaboratable=no
# A multiplier is created even where it is not elaborated, because its latency is needed.
"""Multiplier and adder, with eight sums held in the pipeline of the adder."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.compute.feature import FP32 as BINARY32
from hdl.features.compute.operands import scalar_of
from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32

__all__ = ["PLACES", "SLOTS", "MultiplyAccumulate", "product_latency", "sum_latency"]

#: Number of sums in flight: one per adder stage, and one in its operand register.
SLOTS = FloatAdder.latency + 1

#: Number of stored results: a complete and an incomplete one for each slot.
PLACES = 2 * SLOTS


def product_latency(dsps, operands=BINARY32):
    """Latency in cycles from the elements to the flags ``bubble``, ``first`` and ``negative`` of their term."""
    return scalar_of(operands).product_latency(dsps)


def sum_latency(dsps, operands=BINARY32):
    """Latency in cycles from the elements to the signals ``store`` and ``place`` of their sum."""
    return product_latency(dsps, operands) + SLOTS


class MultiplyAccumulate(wiring.Component):
    """Add a product to one of eight sums in every cycle; the sums are held only in the adder's stages.

    The adder's result returns as an operand :data:`SLOTS` cycles after the previous operand, so each cycle modulo
    :data:`SLOTS` has its own sum. Products and sums are rounded to nearest even. A bubble adds -0.0, which changes no
    sum, not even +0.0. A sum that begins at +0.0 never becomes -0.0. Any initial value, as a product with 1.0, is
    added exactly to a sum that begins at -0.0.

    A complete sum is stored in a memory with :data:`PLACES` entries; half of them can be fetched while the other half
    is written. An entry stored in one cycle can be fetched from the next cycle on.

    There are no handshakes: one product is accepted per cycle. Controls follow their factors after
    :attr:`product_latency` or :attr:`sum_latency` cycles. ``o`` is valid one cycle after ``fetch``. Nothing is reset.

    Parameters
    ----------
    dsps : int
        Number of DSP blocks that the multiplier may use: 4, 2 or 1.
    operands : str
        Format of the factors; must be one that is multiplied element by element.

    Members
    -------
    a, b : In
        Factors, with the shapes of the format.
    bubble : In(1)
        The product is not added. Sampled :attr:`product_latency` cycles after the factors, like the next two inputs.
    first : In(1)
        The sum begins with this term.
    negative : In(1)
        The sum begins at -0.0 instead of +0.0.
    store : In(1)
        The sum including this term is stored. Sampled :attr:`sum_latency` cycles after the factors.
    place : In(range(PLACES))
    fetch : In(range(PLACES))
        Entry of the next result on ``o``.
    move : In(1)
        Load ``o``, which otherwise keeps its value.
    select : In(1)
        Load the result; otherwise load zero, so that the outputs of several units can be joined by OR.
    o : Out(32)
    """

    def __init__(self, *, dsps=4, operands=BINARY32):
        form = scalar_of(operands)
        self._multiplier = form.multiplier(dsps)
        self._dsps = dsps
        super().__init__({
            "a": In(form.a), "b": In(form.b), "bubble": In(1), "first": In(1), "negative": In(1),
            "store": In(1), "place": In(range(PLACES)), "fetch": In(range(PLACES)), "move": In(1), "select": In(1),
            "o": Out(FP32.width),
        })

    @property
    def dsps(self):
        """DSP blocks the multiplier may use."""
        return self._dsps

    @property
    def product_latency(self):
        """Latency in cycles from the factors to the control inputs ``bubble``, ``first`` and ``negative`` of their
        term."""
        return self._multiplier.latency

    @property
    def sum_latency(self):
        """Latency in cycles from the factors to the control inputs ``store`` and ``place`` of their sum."""
        return self.product_latency + SLOTS

    def elaborate(self, platform):
        m = Module()
        m.submodules.multiplier = multiplier = self._multiplier
        m.submodules.adder = adder = FloatAdder()
        # No entry is fetched before it has been stored, unless the result is unused.
        m.submodules.results = results = Memory(
            shape=FP32.width, depth=PLACES, init=[], attrs={"no_rw_check": 1, "ram_style": "distributed"})
        write = results.write_port()
        read = results.read_port(domain="comb")

        # Adder operands: these registers are set or reset rather than loaded, which needs no LUT.
        term = Signal(FP32.width, reset_less=True)
        total = Signal(FP32.width, reset_less=True)
        sign = FP32.width - 1
        m.d.comb += [multiplier.a.eq(self.a), multiplier.b.eq(self.b), adder.a.eq(term), adder.b.eq(total)]
        with m.If(self.bubble):
            m.d.sync += term.eq(1 << sign)
        with m.Else():
            m.d.sync += term.eq(multiplier.o)
        with m.If(self.first):
            m.d.sync += total.eq(Cat(C(0, sign), self.negative))
        with m.Else():
            m.d.sync += total.eq(adder.o)

        m.d.comb += [
            write.addr.eq(self.place),
            write.data.eq(adder.o),
            write.en.eq(self.store),
            read.addr.eq(self.fetch),
        ]
        result = Signal(FP32.width, reset_less=True)
        m.d.comb += self.o.eq(result)
        with m.If(self.move):
            m.d.sync += result.eq(Mux(self.select, read.data, 0))
        return m
