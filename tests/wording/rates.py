"""Measure how often phrases and variable names that hinder reading occur.

Each limit is 1.5 times the highest rate in five well-maintained projects of the field (amaranth, glasgow,
transactron, triton, litex), but at least 1 in 10,000 words or 1 in 1,000 functions.
"""

import ast
import dataclasses
import functools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

__all__ = ["EXCEPTIONS", "NAMES", "PHRASES", "Rate", "Text", "rates", "texts", "variables"]

ROOT = Path(__file__).parents[2]

#: Phrases as regular expressions, with the highest rate per 10,000 words in any of the five projects.
PHRASES = {
    "behind": (r"behind", 0.5),
    "those that, those of, those which": (r"those (?:that|of|which)", 0.4),
    "what is, what it, what a, what the": (r"what (?:is|it|a|the)", 2.8),
    "of which, to which, in which": (r"(?:of|to|in) which", 5.9),
    "whose": (r"whose", 6.6),
    "alone": (r"alone", 0.5),
    "others": (r"others", 1.8),
    "so many, as many": (r"(?:so|as) many", 1.0),
    "beside, besides": (r"besides?", 1.2),
    "tell, tells, told": (r"(?:tells?|told)", 0.9),
    "lie, lies": (r"lies?", 0.5),
    "go on, goes on": (r"go(?:es)? on", 0.0),
}

#: Variable names, with the highest rate per 1,000 functions in any of the five projects.
NAMES = {"found": 0.6, "given": 0.0, "one": 0.0, "place": 0.2, "mine": 0.0, "others": 0.0}

#: Texts excluded from the count, with the reason. There are none so far.
EXCEPTIONS: dict[str, str] = {}

_CODE = ("hdl", "sim", "host", "boards", "gradring", "tests", "examples")
_COMMENT = re.compile(r"(?:^\s*|  )#:? ?(.*)$", re.MULTILINE)
_C_COMMENT = re.compile(r"(?:^\s*|  |\t)//+ ?(.*)$|/\*(.*?)\*/", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Text:
    """A text (docstring, comment, page or help text) with its file."""

    path: Path
    kind: str
    content: str


@dataclasses.dataclass(frozen=True)
class Rate:
    """Frequency of a phrase per 10,000 words, or of a name per 1,000 functions."""

    name: str
    count: int
    rate: float
    limit: float


@functools.cache
def texts() -> tuple[Text, ...]:
    """Return all texts of the project: docstrings, comments, pages and help."""
    return tuple(_texts())


def _texts() -> Iterator[Text]:
    for path in _sources("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield Text(path, "docstring", ast.get_docstring(node) or "")
        yield from (Text(path, "comment", comment) for comment in _COMMENT.findall(source))
    for pattern in ("*.h", "*.cpp", "*.v"):
        for path in _sources(pattern):
            for pair in _C_COMMENT.findall(path.read_text(encoding="utf-8")):
                yield Text(path, "comment", "".join(pair))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        page = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        yield Text(path, "page", "\n".join(line for line in page.split("\n") if not line.startswith("    ")))
    options = ROOT / "host/make/options.json"
    for variables_of in json.loads(options.read_text()).values():
        yield from (Text(options, "help", option["text"]) for option in variables_of.values() if "text" in option)
    targets = ROOT / "host/make/targets.toml"
    yield from (Text(targets, "help", target.get("text", ""))
                for target in tomllib.loads(targets.read_text()).values())


@functools.cache
def rates() -> list[Rate]:
    """Return the rates of all phrases in all texts, ignoring code names in backquotes."""
    words, counts = 0, Counter[str]()
    patterns = {name: re.compile(rf"\b{pattern}\b", re.IGNORECASE) for name, (pattern, _) in PHRASES.items()}
    for text in texts():
        content = re.sub(r"`[^`]*`", "X", text.content)
        if content.strip() in EXCEPTIONS:
            continue
        words += len(re.findall(r"[A-Za-z]+", content))
        for name, pattern in patterns.items():
            counts[name] += len(pattern.findall(content))
    return [Rate(name, counts[name], counts[name] * 10_000 / words, max(1.5 * highest, 1))
            for name, (_, highest) in PHRASES.items()]


@functools.cache
def variables() -> list[Rate]:
    """For each name, count the functions with a parameter or variable of that name, per 1,000 functions."""
    functions, counts = 0, Counter[str]()
    for path in _sources("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                counts.update({name.id for name in ast.walk(node)
                               if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)} |
                              {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)})
    return [Rate(name, counts[name], counts[name] * 1000 / functions, max(1.5 * highest, 1))
            for name, highest in NAMES.items()]


def _sources(pattern: str) -> list[Path]:
    return [path for folder in _CODE for path in sorted((ROOT / folder).rglob(pattern))]
