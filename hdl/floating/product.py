"""Multiplier of significands, which uses multiplier blocks and logic."""

from amaranth.hdl import C, Cat, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .stages import register

__all__ = ["Product", "latency"]

BLOCK_WIDTH = 18


def latency(*, width, dsps):
    """Return the latency of a :class:`Product` in cycles."""
    return 2 if width <= BLOCK_WIDTH or dsps == 4 else 3


class Product(wiring.Component):
    """Multiply two unsigned integers.

    Operands wider than a multiplier block are split into a low part, as wide as the block, and a high part. Partial
    products without a block are computed as sums of shifted rows. Latency is :attr:`latency` cycles: 2 if every
    partial product has its own block, otherwise 3.

    Parameters
    ----------
    width : int
        Width of an operand in bits; at most 36.
    dsps : int
        Maximum number of multiplier blocks: 4, 2 or 1.

    Members
    -------
    a, b : In(width)
    o : Out(2 * width)
    """

    def __init__(self, *, width, dsps):
        if not isinstance(width, int) or not 1 <= width <= 2 * BLOCK_WIDTH:
            raise ValueError(f"Width must be an integer between 1 and {2 * BLOCK_WIDTH}, not {width!r}")
        if dsps not in (1, 2, 4):
            raise ValueError(f"DSP block count must be 4, 2 or 1, not {dsps!r}")
        self._width = width
        self._dsps = dsps
        super().__init__({"a": In(width), "b": In(width), "o": Out(2 * width)})

    @property
    def latency(self):
        """Latency in cycles from the operands to their product."""
        return latency(width=self._width, dsps=self._dsps)

    def elaborate(self, platform):
        m = Module()
        a_low, a_high = self.a[:BLOCK_WIDTH], self.a[BLOCK_WIDTH:]
        b_low, b_high = self.b[:BLOCK_WIDTH], self.b[BLOCK_WIDTH:]

        def total(terms):
            """Add terms, using one carry chain per addition.

            The extra lowest bit keeps Yosys from merging all terms into a full-adder tree of twice the size.
            """
            result, *rest = terms
            for term in rest:
                result = (Cat(C(1, 1), result) + Cat(C(0, 1), term))[1:]
            return result

        def rows(value, digits):
            """Return partial products of ``value``: one term per pair of digits, as the sum of two rows."""
            row = [Mux(digit, value, 0) for digit in digits] + [C(0, 1)]
            pairs = range(0, len(digits), 2)
            return [(row[index] + row[index + 1].shift_left(1)).shift_left(index) for index in pairs]

        if self._width <= BLOCK_WIDTH:
            block = register(m, "block", o=self.a * self.b)
            product = register(m, "product", o=block.o)
            m.d.comb += self.o.eq(product.o)
            return m

        # Every partial product except the product of the low parts is a multiple of 2 ** BLOCK_WIDTH.
        blocks = {"low": a_low * b_low}
        if self._dsps == 4:
            blocks = register(m, "blocks", **blocks, left=a_high * b_low, right=a_low * b_high, high=a_high * b_high)
            low, left, right = Cat(blocks.low, blocks.high), blocks.left, blocks.right
        else:
            middle = [a_high * b_low] if self._dsps == 2 else rows(b_low, a_high)
            terms = dict(enumerate(middle + rows(self.a, b_high)))
            blocks = register(m, "blocks", **blocks, **{f"term{index}": term for index, term in terms.items()})
            terms = [getattr(blocks, f"term{index}") for index in terms]
            half = len(terms) // 2
            halves = register(m, "halves", low=blocks.low, left=total(terms[:half]), right=total(terms[half:]))
            low, left, right = halves.low, halves.left, halves.right
        product = register(
            m, "product", low=low[:BLOCK_WIDTH],
            high=total([left, right, low[BLOCK_WIDTH:]])[:2 * self._width - BLOCK_WIDTH])
        m.d.comb += self.o.eq(Cat(product.low, product.high))
        return m
