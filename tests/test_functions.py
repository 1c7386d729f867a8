"""Functions in host/ are short, and certain tasks are done by only one class or module."""

import ast

from tests.test_layout import ROOT, files

#: Maximum number of lines in a function.
LINES = 60


def test_functions_are_short():
    """All functions in host/, including nested ones, are short. (Ruff limits their complexity and number of
    parameters.)"""
    lengths = {}
    for path in files(".py"):
        if path.is_relative_to(ROOT / "host"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lengths[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = node.end_lineno - node.lineno + 1
    assert len(lengths) > 3000
    assert {name: length for name, length in lengths.items() if length > LINES} == {}


def calls():
    """For each call in host/, yield its module, its class ("" outside of classes) and the source text of the called
    function."""
    for path in files(".py"):
        if path.is_relative_to(ROOT / "host"):
            tree = ast.parse(path.read_text())
            owners = {id(node): owner.name for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef)
                      for node in ast.walk(owner)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    yield str(path.relative_to(ROOT)), owners.get(id(node), ""), ast.unparse(node.func), node


#: Modules of golden nodes, which advance in the same way as simulated nodes.
GOLDEN = ("host/transports/golden/nodes.py", "host/features/programs/golden.py")


def test_one_class_steps_batches():
    """Only the trainer takes batches, makes executors run steps, and counts steps."""
    stepping = {(module, owner) for module, owner, name, node in calls()
                if name.endswith((".executor.execute", "_batches.take")) or (name.endswith(".advance") and not (
                    node.args or node.keywords or module in GOLDEN))}
    assert stepping == {("host/training/trainer.py", "Trainer")}
    counting = {str(path.relative_to(ROOT)) for path in files(".py") if path.is_relative_to(ROOT / "host")
                for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assign | ast.AugAssign)
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if ast.unparse(target).endswith("batches.number")}
    assert counting == {"host/training/trainer.py"}


def test_one_module_installs_signal_handlers():
    assert {module for module, _, name, _ in calls() if name == "signal.signal"} == {"host/signals.py"}
