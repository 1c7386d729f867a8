"""Program of the row unit: for each function, its operands, its passes over the rows and its results."""

import dataclasses
import enum

from hdl.features.compute.layer_list import RowFunction

__all__ = ["FIRST_PASS", "LOADS", "PAIRED", "PASSES", "STORES", "A", "After", "B", "C", "D", "Load", "Pass", "Result",
           "Store"]


class Load(enum.IntEnum):
    """Operands read for a block of rows. The value of a matrix operand is the number of the buffer for it."""

    X = 0
    Y = 1
    START = 2
    """Read only if the function is started."""
    SCALE = 3
    SHIFT = 4
    DEVIATION = 5
    NUMBERS = 6
    TABLE = 7
    """Rows of x selected by the row numbers, stored in the buffer of x."""
    TARGET = 8
    """Rows of the target selected by the row numbers, stored in the buffer of ``start``."""
    END = 9
    """No further operand."""


class Store(enum.IntEnum):
    """Result written for a block of rows."""

    TARGET = 0
    SECOND = 1
    THIRD = 2
    """Written only if the function is started."""
    DEVIATION = 3
    SCATTERED = 4
    """Rows of the target selected by the row numbers."""
    END = 5
    """No further result."""


class A(enum.IntEnum):
    """First summand of a pass."""

    X = 0
    Y = 1
    WORK = 2
    SUM = 3
    """Sum of the row."""


class B(enum.IntEnum):
    """Second summand of a pass."""

    NOTHING = 0
    """-0.0, which leaves every number unchanged."""
    START = 1
    """The start operand, or nothing if the function is not started."""
    SUM = 2
    """Sum of the row, negated."""
    SCALAR = 3
    """Scalar of the row, negated."""


class C(enum.IntEnum):
    """Factor of a pass."""

    ONE = 0
    Y = 1
    SAME = 2
    """The sum ``a + b`` itself."""
    SCALE = 3
    FACTOR = 4
    DEVIATION = 5
    SECOND_SCALAR = 6
    """Second scalar of the row, negated."""
    ONE_AND_Y = 7
    """1.0 for the first of two sums, and y for the second."""


class D(enum.IntEnum):
    """Addend of a pass."""

    NOTHING = 0
    START = 1
    """The start operand, or nothing if the function is not started."""
    WORK = 2
    SHIFT = 3
    EPSILON = 4


class After(enum.IntEnum):
    """Event that a pass waits for, which ensures that the operands of all its rows are ready."""

    NOTHING = 0
    RESULTS = 1
    """Results of the previous pass are stored."""
    SUMS = 2
    """Results of the previous pass, and sums of the latest pass that produced sums, are stored."""
    ROOTS = 3
    """Reciprocals of deviations arrive, one row after another."""


class Result(enum.IntEnum):
    """How the results of a pass are used."""

    NOTHING = 0
    """Results are kept in the work buffer, or only summed up."""
    STORED = 1
    STORED_IF_STARTED = 2
    SCALAR = 3
    """Scalar of each row: the pass has only one column."""
    ROOT = 4
    """Square of a deviation: the pass has only one column."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """Pass over the elements of a block, one column block at a time: (a + b) · c + d.

    Members
    -------
    a, b, c, d : A, B, C, D
    needs : int or Load
        Last operand that must have been loaded before the pass.
    after : After
    summed : bool
        Accumulate (a + b) · c in the sum of the row.
    twice : bool
        There are two sums or scalars: each column block processes all rows with the first, then with the second.
    kept : bool
        Store the results in the work buffer; for a ``summed`` pass, these are the products.
    result : Result
    """

    a: A = A.X
    b: B = B.NOTHING
    c: C = C.ONE
    d: D = D.NOTHING
    needs: Load = Load.END
    after: After = After.NOTHING
    summed: bool = False
    twice: bool = False
    kept: bool = False
    result: Result = Result.NOTHING


LOADS = {
    RowFunction.ADD: (Load.START, Load.X),
    RowFunction.SCALE: (Load.SCALE, Load.SHIFT, Load.X),
    RowFunction.NORM: (Load.START, Load.X, Load.SCALE, Load.SHIFT),
    RowFunction.NORM_BACK: (Load.SCALE, Load.X, Load.Y, Load.START, Load.DEVIATION),
    RowFunction.SOFTMAX_BACK: (Load.X, Load.Y),
    RowFunction.GATHER: (Load.NUMBERS, Load.START, Load.TABLE),
    RowFunction.SCATTER: (Load.NUMBERS, Load.X, Load.TARGET),
    RowFunction.CLEAR: (),
}
"""Operands in the order of reading."""

PAIRED = {RowFunction.NORM, RowFunction.SOFTMAX_BACK}
"""Functions that read their first two operands alternately, if both are used: one column block of each at a time."""

PASSES = {
    RowFunction.ADD: (Pass(b=B.START, needs=Load.X, result=Result.STORED),),
    RowFunction.SCALE: (Pass(c=C.SCALE, d=D.SHIFT, needs=Load.X, result=Result.STORED),),
    RowFunction.NORM: (
        Pass(b=B.START, needs=Load.X, summed=True, kept=True, result=Result.STORED_IF_STARTED),
        Pass(a=A.SUM, c=C.FACTOR, after=After.SUMS, result=Result.SCALAR),
        Pass(a=A.WORK, b=B.SCALAR, c=C.SAME, after=After.RESULTS, summed=True),
        Pass(a=A.SUM, c=C.FACTOR, d=D.EPSILON, after=After.SUMS, result=Result.ROOT),
        Pass(a=A.WORK, b=B.SCALAR, c=C.DEVIATION, after=After.ROOTS, kept=True, result=Result.STORED),
        Pass(a=A.WORK, c=C.SCALE, d=D.SHIFT, needs=Load.SHIFT, after=After.RESULTS, result=Result.STORED),
    ),
    RowFunction.NORM_BACK: (
        Pass(c=C.SCALE, needs=Load.X, kept=True),
        Pass(a=A.WORK, c=C.ONE_AND_Y, needs=Load.Y, after=After.RESULTS, summed=True, twice=True),
        Pass(c=C.Y, result=Result.STORED),
        Pass(a=A.SUM, c=C.FACTOR, after=After.SUMS, twice=True, result=Result.SCALAR),
        Pass(a=A.WORK, b=B.SCALAR, after=After.RESULTS, kept=True),
        Pass(a=A.Y, c=C.SECOND_SCALAR, d=D.WORK, after=After.RESULTS, kept=True),
        Pass(a=A.WORK, c=C.DEVIATION, d=D.START, needs=Load.DEVIATION, after=After.RESULTS, result=Result.STORED),
    ),
    RowFunction.SOFTMAX_BACK: (
        Pass(c=C.Y, needs=Load.Y, summed=True),
        Pass(b=B.SUM, c=C.Y, after=After.SUMS, kept=True),
        Pass(a=A.WORK, c=C.FACTOR, after=After.RESULTS, result=Result.STORED),
    ),
    RowFunction.GATHER: (Pass(b=B.START, needs=Load.TABLE, result=Result.STORED),),
    RowFunction.SCATTER: (Pass(b=B.START, needs=Load.TARGET, result=Result.STORED),),
    RowFunction.CLEAR: (),
}
"""Passes in order. GATHER has passes only if it is started; otherwise it copies."""

STORES = {
    RowFunction.ADD: (Store.TARGET,),
    RowFunction.SCALE: (Store.TARGET,),
    RowFunction.NORM: (Store.THIRD, Store.DEVIATION, Store.SECOND, Store.TARGET),
    RowFunction.NORM_BACK: (Store.SECOND, Store.TARGET),
    RowFunction.SOFTMAX_BACK: (Store.TARGET,),
    RowFunction.GATHER: (Store.TARGET,),
    RowFunction.SCATTER: (Store.SCATTERED,),
    RowFunction.CLEAR: (Store.TARGET,),
}
"""Results in the order of writing."""

FIRST_PASS = {function: sum(len(PASSES[before]) for before in RowFunction if before < function)
              for function in RowFunction}
"""Number of a function's first pass in the list of all passes."""
