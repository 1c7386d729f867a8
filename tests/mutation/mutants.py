"""Mutants: gateware with one small mistake, each a textual change at one position in a file of hdl/.

Only code that becomes gateware is changed: function bodies, except constructors, raise statements, names and strings.
Kinds of changes:

==========  ========================================================================================================
statement   an assignment is omitted
state       an FSM goes to a different state, or stays
condition   ``m.If(c)`` and ``m.Elif(c)`` have the opposite condition
operand     one operand of ``&`` or ``|`` is omitted
operator    ``&`` and ``|``, ``+`` and ``-``, ``<<`` and ``>>``, ``any`` and ``all`` are exchanged, ``^`` is ``|``
comparison  ``==`` and ``!=``, ``<`` and ``<=``, ``>`` and ``>=`` are exchanged
negation    ``~`` is omitted, also in ``~0``
mux         ``Mux(c, a, b)`` becomes ``a``, ``b`` or ``Mux(c, b, a)``
reset       an initial value of 0 or 1 is inverted, or a register has none; a ``ResetInserter`` is omitted
constant    a number is one higher or lower; a width is only lower, since a wider signal behaves the same
range       a range ends one item earlier
==========  ========================================================================================================
"""

import ast
import dataclasses
import hashlib
import re
from collections.abc import Iterator

KINDS = ("statement", "state", "condition", "operand", "operator", "comparison", "negation", "mux", "reset",
         "constant", "range")

_OPERATORS: dict[type[ast.operator], str] = {
    ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|", ast.Add: "-", ast.Sub: "+", ast.LShift: ">>", ast.RShift: "<<"}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_SHAPES = {"Signal", "Const", "In", "Out", "unsigned", "signed", "StructLayout", "ArrayLayout"}
_UNCHANGED = {"name", "attrs", "reset_less", "domain", "granularity"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    kind: str  # one of :data:`KINDS`
    start: int  # start of the replaced byte range in the source
    end: int
    text: str  # text that replaces the range
    line: int  # number of the first changed line
    before: str  # all lines that change, joined with single spaces
    after: str  # the same lines after the change
    occurrence: int = 1  # number, from 1, among mutants with the same ``before`` and ``after``

    def apply(self, source: str) -> str:
        """Apply the change to a source text and return the changed text."""
        data = source.encode()
        return (data[:self.start] + self.text.encode() + data[self.end:]).decode()

    @property
    def key(self) -> tuple[str, str, int]:
        """Key that identifies the mutant in its file and does not depend on line numbers."""
        return self.before, self.after, self.occurrence


def find(source: str) -> list[Mutant]:
    """Return all mutants of a source text, ordered by position."""
    finder = _Finder(source)
    unique: dict[tuple[int, int, str], Mutant] = {}
    for mutant in sorted(finder.find(), key=lambda candidate: (candidate.start, candidate.end, candidate.text)):
        # Keep only one of several mutants that change the same position in the same way.
        unique.setdefault((mutant.start, mutant.end, mutant.text), mutant)
    counts: dict[tuple[str, str], int] = {}
    result = []
    for mutant in unique.values():
        pair = (mutant.before, mutant.after)
        counts[pair] = counts.get(pair, 0) + 1
        result.append(dataclasses.replace(mutant, occurrence=counts[pair]))
    return result


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Choose mutants, ordered by position and spread over the kinds as evenly as possible.

    The choice depends on the seed and on the mutants' own text, so adding a line elsewhere in the file changes few of
    the other choices.
    """
    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(repr((seed, *mutant.key)).encode()).digest()

    piles = [sorted((item for item in mutants if item.kind == kind), key=rank, reverse=True) for kind in KINDS]
    chosen: list[Mutant] = []
    while len(chosen) < count and any(piles):
        for pile in piles:
            if pile and len(chosen) < count:
                chosen.append(pile.pop())
    return sorted(chosen, key=lambda item: (item.start, item.end, item.text))


def _called(node: ast.AST) -> str:
    """Return the name of the called function, without any qualifier."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


class _Finder:
    def __init__(self, source: str):
        self._data = source.encode()
        self._tree = ast.parse(source)
        self._lines = [0]
        for line in self._data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def find(self) -> Iterator[Mutant]:
        for node in self._tree.body:
            if isinstance(node, ast.FunctionDef):
                yield from self._function(node)
            elif isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                        yield from self._function(member)

    def _function(self, node: ast.FunctionDef) -> Iterator[Mutant]:
        states = sorted({argument.value for call in ast.walk(node) if _called(call) == "State"
                         for argument in getattr(call, "args", []) if isinstance(argument, ast.Constant)})
        for statement in node.body:
            yield from self._visit(statement, states, shape=False)

    # --- positions and texts of nodes of the syntax tree

    def _span(self, node: ast.AST) -> tuple[int, int]:
        located = node  # an expression or a statement; only these have positions
        return (self._lines[located.lineno - 1] + located.col_offset,  # type: ignore[attr-defined]
                self._lines[located.end_lineno - 1] + located.end_col_offset)  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._data[start:end].decode()

    def _replace(self, kind: str, node: ast.AST, text: str) -> Mutant:
        return self._change(kind, *self._span(node), text)

    def _change(self, kind: str, start: int, end: int, text: str) -> Mutant:
        first = self._data.rfind(b"\n", 0, start) + 1
        last = self._data.find(b"\n", end)
        last = len(self._data) if last < 0 else last
        head, tail = self._data[first:start], self._data[end:last]

        def line(middle: bytes) -> str:
            return re.sub(r"\s+", " ", (head + middle + tail).decode()).strip()

        number = self._data.count(b"\n", 0, start) + 1
        return Mutant(kind, start, end, text, number, line(self._data[start:end]), line(text.encode()))

    # --- changes to the source

    def _visit(self, node: ast.AST, states: list[str], *, shape: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.arguments):
            return
        if isinstance(node, ast.If) and any(isinstance(statement, ast.Raise) for statement in node.body):
            return
        if isinstance(node, ast.keyword) and node.arg in _UNCHANGED:
            return
        if isinstance(node, ast.AugAssign):
            # `m.d.sync += x` is not an addition.
            if not isinstance(node.target, ast.Name):
                if _called(node.value) == "eq":
                    yield self._replace("statement", node.value, "()")
                yield from self._visit(node.value, states, shape=shape)
                return
        elif isinstance(node, ast.List | ast.GeneratorExp):
            for element in node.elts if isinstance(node, ast.List) else [node.elt]:
                if _called(element) == "eq":
                    yield self._replace("statement", element, "()")
        elif isinstance(node, ast.Assign):
            yield from self._state(node, states)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.BinOp):
            yield from self._binary(node, shape)
        elif isinstance(node, ast.Compare):
            yield from self._comparison(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            yield self._replace("negation", node, f"({self._text(node.operand)})")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            changes = (-1,) if shape else (1, -1)
            yield from (self._replace("constant", node, str(node.value + change)) for change in changes
                        if node.value + change >= 0)

        shape = shape or _called(node) in _SHAPES
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword) and child.arg == "init":
                yield from self._visit(child, states, shape=False)
            else:
                yield from self._visit(child, states, shape=shape)

    def _state(self, node: ast.Assign, states: list[str]) -> Iterator[Mutant]:
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr == "next":
            here = node.value.value if isinstance(node.value, ast.Constant) else None
            alternatives = [state for state in states if state != here]
            if alternatives:
                # The names of the states determine the replacement state, so that line numbers do not affect the
                # choice.
                digest = hashlib.sha256(repr((here, alternatives)).encode()).digest()
                other = alternatives[(digest[0] + node.col_offset) % len(alternatives)]
                yield self._replace("state", node.value, f'"{other}"')
            yield self._replace("state", node, "pass")

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        name, arguments = _called(node), node.args
        if name in ("If", "Elif") and arguments:
            yield self._replace("condition", arguments[0], f"({self._text(arguments[0])}) == 0")
        elif name == "Mux" and len(arguments) == 3:
            condition, first, second = (self._text(argument) for argument in arguments)
            yield self._replace("mux", node, f"({first})")
            yield self._replace("mux", node, f"({second})")
            yield self._replace("mux", node, f"Mux({condition}, {second}, {first})")
        elif name in ("any", "all") and isinstance(node.func, ast.Attribute) and not arguments:
            value = self._text(node.func.value)
            yield self._replace("operator", node, f"{value}.{'all' if name == 'any' else 'any'}()")
        elif name == "range" and arguments:
            end = arguments[1] if len(arguments) > 1 else arguments[0]
            if not isinstance(end, ast.Constant):
                yield self._replace("range", end, f"({self._text(end)}) - 1")
        elif isinstance(node.func, ast.Call) and _called(node.func) == "ResetInserter":
            yield self._replace("reset", node, f"({self._text(arguments[0])})")
        if name in ("Signal", "like"):
            for keyword in node.keywords:
                if keyword.arg == "init":
                    value = keyword.value
                    flipped = isinstance(value, ast.Constant) and value.value in (0, 1)
                    yield self._replace("reset", value, str(1 - value.value) if flipped else "0")

    def _binary(self, node: ast.BinOp, shape: bool) -> Iterator[Mutant]:
        swapped = _OPERATORS.get(type(node.op))
        if swapped is None or (shape and isinstance(node.op, ast.Add | ast.Sub)):
            return
        left, right = self._span(node.left), self._span(node.right)
        # There may be parentheses and line breaks between the operands, but no other operator.
        between = self._data[left[1]:right[0]].decode()
        sign = {"|": "&", "&": "|", "-": "+", "+": "-", ">>": "<<", "<<": ">>"}[swapped]
        if isinstance(node.op, ast.BitXor):
            sign = "^"
        at = left[1] + len(between[:between.index(sign)].encode())
        yield self._change("operator", at, at + len(sign), swapped)
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            yield self._replace("operand", node, f"({self._text(node.left)})")
            if not (isinstance(node.left, ast.BinOp) and isinstance(node.left.op, type(node.op))):
                yield self._replace("operand", node, f"({self._text(node.right)})")

    def _comparison(self, node: ast.Compare) -> Iterator[Mutant]:
        swapped = _COMPARISONS.get(type(node.ops[0]))
        if swapped is None or len(node.ops) > 1:
            return
        end, start = self._span(node.left)[1], self._span(node.comparators[0])[0]
        between = self._data[end:start].decode()
        match = re.search(r"==|!=|<=|>=|<|>", between)
        assert match is not None
        at = end + len(between[:match.start()].encode())
        yield self._change("comparison", at, at + len(match[0]), swapped)
