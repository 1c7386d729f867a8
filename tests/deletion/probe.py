"""Checks that run inside a copy without some features, given the names of the missing features."""

import contextlib
import importlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest


def modules():
    """Import all modules except tests; return the number of modules.

    Modules that need PyTorch, which is optional, are skipped if it is not installed.
    """
    paths = [path for tree in ("hdl", "sim", "host", "boards", "gradring")
             for path in sorted(Path(tree).rglob("*.py")) if path.name != "__main__.py"]
    for path in paths:
        try:
            importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
    return len(paths)


def core_node():
    """Elaborate a core node."""
    from amaranth.hdl import Fragment

    from hdl.config import Memories, NodeConfig
    from hdl.node import Node

    config = NodeConfig(memories=Memories(gradient=64, weight=64, state=32))
    assert config.feature_names == ()
    Fragment.get(Node(config), None)


def training():
    """Train for two steps on golden nodes; return the losses."""
    from host.run.execution import train
    from host.run.spec import RunSpec
    from host.transports.session import TransportName

    with tempfile.TemporaryDirectory() as folder:
        report = train(RunSpec().replace({
            "backend.transport": TransportName.GOLDEN, "workload.steps": 2, "model.hidden": "none",
            "output.folder": Path(folder) / "run"}))
    return [step["loss"] for step in report["per_step"]]


def refusals(names):
    """Check that boards, units and commands name the missing feature that they need; return the number of checks."""
    from boards.tools import SynthesisError
    from boards.units import UNITS
    from hdl.board import BOARDS

    lacks = f" needs feature ({'|'.join(names)}), which is not in this copy"
    boards = set(BOARDS) - set(BOARDS.present)
    for board in boards:
        with pytest.raises(ValueError, match=f"^Board {board}{lacks}"):
            BOARDS[board]
    units = [unit for unit in UNITS.values() if not unit.present]
    for unit in units:
        with pytest.raises(SynthesisError, match=f"^Unit {unit.target}{lacks}"):
            unit.call({})
    return len(boards) + len(units) + commands(lacks)


def commands(lacks):
    """Check that commands and labs of a missing feature print one line, and that ``gradring info`` works."""
    from host import cli
    from host.commands.registry import COMMANDS
    from host.labs.registry import LABS

    missing = [*([name] for name, entry in COMMANDS.items() if entry.missing),
               *(["lab", name] for name, entry in LABS.items() if entry.missing)]
    for arguments in missing:
        code, text = called(cli, arguments)
        assert code == 1, arguments
        assert re.fullmatch(f"error: {arguments[-1]}{lacks}\n", text), text
    assert called(cli, ["info"])[0] == 0
    return len(missing)


def called(cli, arguments):
    """Return the exit code and the error output of a command."""
    errors = io.StringIO()
    with mock.patch.object(sys, "argv", ["gradring", *arguments]), contextlib.redirect_stderr(errors), \
            contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0, errors.getvalue()


class Collected:
    """Pytest plugin that counts the collected tests."""

    count = 0

    def pytest_collection_finish(self, session):
        self.count = len(session.items)


def collection():
    """Collect the tests of the core; return the number of tests."""
    collected = Collected()
    ignored = [f"--ignore={tree}" for tree in ("tests/features", "tests/host/features")]
    options = ["--collect-only", "-qq", "-n0", "-p", "no:cacheprovider", "--assert=plain", "--no-header"]
    code = pytest.main([*options, *ignored, "tests"], plugins=[collected])
    assert code == 0, code
    return collected.count


if __name__ == "__main__":
    core_node()
    result = {"modules": modules(), "losses": training(), "refusals": refusals(sys.argv[1:])}
    result["collected"] = collection()
    print("\n" + json.dumps(result))
