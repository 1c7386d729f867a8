"""Golden models import only names and layouts from hdl, but no units. Models of the core import no features."""

import ast
import dataclasses
import enum
import importlib
import types
from pathlib import Path

import pytest
from amaranth.hdl import Elaboratable

from sim import golden

#: Functions that may be imported although they return the text of an error instead of a layout.
TEXTS = {"choice_error"}
ROOT = Path(golden.__path__[0])
FILES = sorted(ROOT.rglob("*.py"))


def is_name(name, value):
    """Return whether ``value`` is data (number, text, enumeration, description) or a function that returns a
    layout."""
    if isinstance(value, type):
        describes = dataclasses.is_dataclass(value) or value.__module__.startswith("hdl.config.")
        return not issubclass(value, Elaboratable) and (issubclass(value, enum.Enum) or describes)
    if isinstance(value, types.FunctionType):
        return name.endswith("_layout") or name in TEXTS
    return isinstance(value, int | float | str | tuple | dict | set | frozenset)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_golden_models_import_names_and_layouts(path):
    tree = ast.parse(path.read_text())
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "hdl" for alias in node.names), node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hdl":
            for alias in node.names:
                value = getattr(importlib.import_module(node.module), alias.name, None)
                if value is None or isinstance(value, types.ModuleType):
                    modules[alias.asname or alias.name] = importlib.import_module(f"{node.module}.{alias.name}")
                else:
                    assert is_name(alias.name, value), f"{alias.name}, line {node.lineno}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert is_name(node.attr, getattr(modules[node.value.id], node.attr)), f"{node.attr}, line {node.lineno}"


def test_core_imports_no_feature():
    for path in FILES:
        if not path.is_relative_to(ROOT / "features"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    assert not node.module.startswith("sim.golden.features"), f"{path}, line {node.lineno}"
                    assert "features" not in {alias.name for alias in node.names}, f"{path}, line {node.lineno}"
