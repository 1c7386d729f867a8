"""Mutants of a small source text: their kinds and positions, and that each makes a single change."""

import ast
import collections
import textwrap

import pytest

from tests.mutation.mutants import KINDS, find, sample

SOURCE = textwrap.dedent('''\
    """A unit — with a letter of more than one byte."""

    LIMIT = 3


    class Unit(Component):
        """Text with a & b == 1."""

        depth = 4

        def __init__(self, size):
            if size < 1:
                raise ValueError(f"Size must be {size + 1}")
            super().__init__({"o": Out(size)})

        def elaborate(self, platform):
            m = Module()
            if len(self.o) > 9:
                raise ValueError("no")
            full = Signal(4, init=1, name=f"full{1 + 1}")
            m.d.comb += self.o.eq(Mux(self.a, full, ~0))
            m.d.sync += [
                self.b.eq(self.c & self.d
                          & ~self.e),
                self.c.any(),
            ]
            with m.FSM():
                with m.State("One"):
                    with m.If(self.a == 2):
                        m.next = "Two"
                with m.State("Two"):
                    for n in range(len(self.o)):
                        m.d.sync += self.b[n].eq(1)
            return ResetInserter(self.clear)(m)
    ''')


def changes(kind):
    return [(mutant.before, mutant.after) for mutant in find(SOURCE) if mutant.kind == kind]


def test_each_is_one_change_that_parses():
    mutants = find(SOURCE)
    for mutant in mutants:
        changed = mutant.apply(SOURCE)
        assert changed != SOURCE
        ast.parse(changed)
        assert changed.count("\n") == SOURCE.count("\n") - SOURCE.encode()[mutant.start:mutant.end].count(b"\n")
    assert len({mutant.apply(SOURCE) for mutant in mutants}) == len(mutants)
    assert {mutant.kind for mutant in mutants} == set(KINDS)


def test_only_gateware_is_changed():
    """Constructors, raise statements, names, text and class attributes are never mutated."""
    first = SOURCE[:SOURCE.index("def elaborate")].count("\n") + 1
    lines = SOURCE.split("\n")
    assert all(mutant.line > first for mutant in find(SOURCE))
    assert not any("len(self.o) > 9" in mutant.before or "1 + 1" not in mutant.after
                   for mutant in find(SOURCE) if "full" in lines[mutant.line - 1][:20])


@pytest.mark.parametrize(("kind", "expected"), [
    ("mux", [("m.d.comb += self.o.eq(Mux(self.a, full, ~0))", f"m.d.comb += self.o.eq({text})")
             for text in ("(full)", "(~0)", "Mux(self.a, ~0, full)")]),
    ("negation", [("m.d.comb += self.o.eq(Mux(self.a, full, ~0))", "m.d.comb += self.o.eq(Mux(self.a, full, (0)))"),
                  ("& ~self.e),", "& (self.e)),")]),
    ("operand", [("self.b.eq(self.c & self.d & ~self.e),", "self.b.eq((self.c & self.d)),"),
                 ("self.b.eq(self.c & self.d", "self.b.eq((self.c)"),
                 ("self.b.eq(self.c & self.d", "self.b.eq((self.d)")]),
    ("condition", [("with m.If(self.a == 2):", "with m.If((self.a == 2) == 0):")]),
    ("comparison", [("with m.If(self.a == 2):", "with m.If(self.a != 2):")]),
    ("state", [('m.next = "Two"', 'm.next = "One"'), ('m.next = "Two"', "pass")]),
    ("range", [("for n in range(len(self.o)):", "for n in range((len(self.o)) - 1):")]),
    ("reset", [('full = Signal(4, init=1, name=f"full{1 + 1}")', 'full = Signal(4, init=0, name=f"full{1 + 1}")'),
               ("return ResetInserter(self.clear)(m)", "return (m)")]),
    ("statement", [("m.d.comb += self.o.eq(Mux(self.a, full, ~0))", "m.d.comb += ()"),
                   ("self.b.eq(self.c & self.d & ~self.e),", "(),"),
                   ("m.d.sync += self.b[n].eq(1)", "m.d.sync += ()")]),
])
def test_kinds(kind, expected):
    assert sorted(changes(kind)) == sorted(expected)


def test_operators():
    operators = changes("operator")
    assert ("self.c.any(),", "self.c.all(),") in operators
    assert ("& ~self.e),", "| ~self.e),") in operators
    assert ("self.b.eq(self.c & self.d", "self.b.eq(self.c | self.d") in operators
    assert len(operators) == 3


def test_widths_are_only_made_smaller():
    numbers = [after for before, after in changes("constant") if "Signal(4" in before]
    assert sorted(numbers) == [f'full = Signal({width}, init={init}, name=f"full{{1 + 1}}")'
                               for width, init in ((3, 1), (4, 2))]


def test_places_with_the_same_text_are_told_apart():
    mutants = find("def f(m):\n    m.d.sync += [\n        a.eq(1),\n        a.eq(1),\n    ]\n")
    keys = [mutant.key for mutant in mutants if mutant.kind == "statement"]
    assert keys == [("a.eq(1),", "(),", 1), ("a.eq(1),", "(),", 2)]


def test_sample():
    mutants = find(SOURCE)
    chosen = sample(mutants, 15, 1)
    assert chosen == sample(mutants, 15, 1) != sample(mutants, 15, 2)
    assert chosen == sorted(chosen, key=lambda mutant: mutant.start)
    counts = collections.Counter(mutant.kind for mutant in chosen)
    assert set(counts) == set(KINDS)
    assert len(sample(mutants, 10_000, 1)) == len(mutants)
    # Adding lines above a mutant does not change which mutants are chosen.
    moved = sample(find("\n\n" + SOURCE), 15, 1)
    assert [mutant.key for mutant in moved] == [mutant.key for mutant in chosen]
