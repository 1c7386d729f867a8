"""Functions of host/ that can be read at once."""

import ast

from tests.test_layout import ROOT, files

#: Most lines of a function.
LINES = 60


def test_functions_are_short():
    """All functions of host/, also those within others; ruff checks their complexity and parameters."""
    lengths = {}
    for path in files(".py"):
        if path.is_relative_to(ROOT / "host"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lengths[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = node.end_lineno - node.lineno + 1
    assert len(lengths) > 3000
    assert {name: length for name, length in lengths.items() if length > LINES} == {}
