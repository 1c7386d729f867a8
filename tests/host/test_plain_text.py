"""Names that users choose are printed unchanged in the lines, tables and progress bars of all commands."""

import ast
import contextlib
import functools
import io
from pathlib import Path
from types import GeneratorType

import pytest
from rich.progress import Progress as Bars

from host.columns import Column, Table
from host.console import Progress, shown
from host.plain_text import PlainColumn, PlainConsole
from host.printable import printable, printable_lines

ROOT = Path(__file__).parents[2]

#: Names of files, scripts and codecs that users might choose, and how each of them is displayed.
HOSTILE = {
    "[/b]": "[/b]", "[red]": "[red]", "[link=x]y": "[link=x]y", "\\[b]": "\\[b]", "[": "[", "a]": "a]",
    ":smile:": ":smile:", "{note}": "{note}", "%s": "%s", "100%": "100%", "'1.5'": "'1.5'",
    "\x1b[31m": r"\x1b[31m", "a\rb": r"a\rb", "\x07\b\x0b\x0c\x7f": r"\x07\x08\x0b\x0c\x7f", "\x9b2J": r"\x9b2J",
    "\u202egnp": r"\u202egnp", "\u2028": r"\u2028", "\udcff": r"\udcff", "x" * 300: "x" * 300,
    "\N{CJK UNIFIED IDEOGRAPH-4E2D}": "\N{CJK UNIFIED IDEOGRAPH-4E2D}",
}


def recording(**options):
    """Console that is set up like the console of commands but keeps the printed text."""
    return PlainConsole(file=io.StringIO(), width=1000, **options)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_text(name):
    """Names are displayed as plain text, regardless of their contents, in every part of a table and in progress
    bars."""
    console, seen = recording(force_terminal=True, color_system=None), HOSTILE[name]
    # Options with which a caller asks for formatting have no effect.
    console.print(f"<{name}>", soft_wrap=True, markup=True, emoji=True, highlight=True)
    assert console.file.getvalue() == f"<{seen}>\n"
    columns = (Column("cell", title=f"first {name}"), Column("second"))
    console.print(Table(f"title {name}", columns, [{"cell": f"cell {name}", "second": 1}], caption=f"caption {name}"))
    for part in ("title", "first", "cell", "caption"):
        assert f"{part} {seen}" in console.file.getvalue()
    bars = Bars(PlainColumn("{task.description}"), PlainColumn("{task.fields[note]}"))
    bars.add_task(f"stage {name}", note=f"note {name}")
    console.print(bars)
    assert f"stage {seen} note {seen}" in console.file.getvalue()


def test_printable():
    assert printable("a\nb") == r"a\nb"
    assert printable("a\x1b[31mb\r\n\u202e\u00e9 c") == "a\\x1b[31mb\\r\\n\\u202e\u00e9 c"
    assert printable_lines("a\n\tb") == "a\n\\tb"


def test_shown(tmp_path, monkeypatch):
    """A path is displayed on one line, either relative to the working directory or absolute."""
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "[/b]\n" / "\x1b") == r"[/b]\n/\x1b"
    assert shown(Path("/a\rb")) == r"/a\rb"


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal):
    """Progress displays show names in stages, notes and lines as plain text, with and without a terminal."""
    console = recording(force_terminal=terminal, color_system=None)
    with Progress(console, interval=0) as progress:
        for name in HOSTILE:
            progress.stage(f"stage {name}", 2)
            progress.advance(f"note {name}")
            progress.say(f"line {name}")
            if terminal:
                progress._bars.refresh()
    for seen in HOSTILE.values():
        for part in ("stage", "note", "line"):
            assert f"{part} {seen}" in console.file.getvalue()


# Tests of all texts that commands print.

class Placeholder(str):
    """Stand-in for any value in a command. It can be called, has every attribute, and prints as a given name."""

    __slots__ = ()
    #: Number of items that iterating over a placeholder yields.
    count = 1

    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **options):
        return self

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __call__
    __floordiv__ = __or__ = replace = __call__

    def __iter__(self):
        yield from [self] * self.count

    def __lt__(self, other):
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __format__(self, text):
        return str.__str__(self)


class Namespace(dict):
    """Namespace in which every name is a placeholder, even names of functions that return text or numbers."""

    def __init__(self, name):
        value = Placeholder(name)
        functions = dict.fromkeys(("sum", "max", "min", "len", "round"), value)
        super().__init__(functions, map=lambda call, *values: [value], range=lambda *values: [0], str=str,
                         isinstance=isinstance, enumerate=enumerate)
        self._value = value

    def __missing__(self, key):
        return self._value


@functools.cache
def sources():
    """Syntax trees of all modules that may print, by path."""
    paths = [path for folder in ("host", "boards", "sim", "gradring") for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def called(node):
    """Return the name of the function or method that a call expression calls."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


#: Functions that print: lines, tables and their headings, and the stages and notes of a progress display.
PRINTING = ("say", "add_task", "stage", "advance", "Column", "Table")


def printed(tree):
    """Yield the expressions that a module passes to printing functions."""
    for node in calls(tree):
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if called(node) in PRINTING or (called(node) == "print" and owner.endswith("console")):
            yield from (argument.value if isinstance(argument, ast.Starred) else argument for argument in node.args)
            yield from (option.value for option in node.keywords if option.arg in ("title", "note"))


def made_of(code, name):
    """Evaluate the source text of an expression that is printed, with placeholders for all its values; return the
    resulting items."""
    for Placeholder.count in (1, 2, 3):
        with contextlib.suppress(ValueError):
            made = eval(code, Namespace(name))
            return list(made) if isinstance(made, GeneratorType | list | tuple) else [made]
    raise AssertionError(f"{name}: values must have at most 3 items")


#: Modules of commands that do not print lines, tables or stages themselves.
SILENT = {"__init__", "registry", "train"}


def test_all_commands():
    """Every text that a command prints stays intact, even if names in it are hostile."""
    console, modules, named = recording(), set(), 0
    for path, tree in sources().items():
        if not path.startswith(("host/commands/", "host/labs/", "host/run/", "host/console.py", "host/cli.py")):
            continue
        for node in printed(tree):
            modules.add(Path(path).stem)
            code = compile(ast.Expression(node), path, "eval")
            for name in HOSTILE:
                for text in map(str, made_of(code, name)):
                    console.file = io.StringIO()
                    console.print(text, soft_wrap=True)
                    assert console.file.getvalue() == printable_lines(text) + "\n", f"{path}:{node.lineno}"
                    named += name in text
    assert {path.stem for path in (ROOT / "host" / "commands").glob("*.py")} - modules == SILENT
    assert named > 100 * len(HOSTILE)


def test_one_console():
    """All consoles and columns of progress displays print plain text, and no call asks for formatting."""
    consoles_made = []
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rich":
                names = {alias.name for alias in node.names}
                if path != "host/plain_text.py":
                    assert not names & {"print", "inspect", "TextColumn", "Text", "escape", "Panel", "Prompt"}, path
            elif isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] == "rich" for alias in node.names), path
        for node in calls(tree):
            where = f"{path}:{node.lineno}"
            assert called(node) not in ("Console", "TextColumn", "from_markup", "rule", "log_exception"), where
            assert not {option.arg for option in node.keywords} & {"markup", "emoji", "highlight"} \
                or path == "host/plain_text.py", where
            if called(node) == "PlainConsole":
                consoles_made.append(path)
    assert sorted(consoles_made) == ["host/columns.py", "host/console.py"]


# Tests of complete programs.

def test_examples(succeed, tmp_path, monkeypatch):
    """If a folder has a hostile name, a command still succeeds, and prints the name as plain text."""
    for name in ("x/[/b]", ":smile:", "\x1b[31m\n"):
        monkeypatch.chdir(tmp_path)
        out = succeed("examples", name)
        assert f"{printable(name)}/numpy_model.py\n" in out


def test_errors(run):
    """Control characters in a user's name do not move the cursor when an error message contains the name."""
    code, _, err = run("packets", "[/b]\x1b[2J")
    assert code == 1
    assert err.startswith("error: ")
    assert r"[/b]\x1b[2J" in err
