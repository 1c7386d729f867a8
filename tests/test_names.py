"""A script's files may have the names of this repository's packages; both remain importable."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradring import names
from host.pytorch import launch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    """A folder with modules that have the names of this repository's packages, and with a package in which modules
    have these names too."""
    for name in names.PACKAGES:
        (tmp_path / f"{name}.py").write_text("WHO = 'script'\n\ndef who():\n    return WHO\n")
    inner = tmp_path / "packages" / "sim" / "streams"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text(
        "from . import streams\nfrom .streams import VALUE\nimport sim.streams\n")
    (inner.parent / "late.py").write_text("VALUE = 5\n")
    (inner / "__init__.py").write_text(textwrap.dedent("""
        VALUE = 3

        def late():
            from .. import late
            import sim.late as again
            from sim import late as once_more
            assert late is again is once_more
            return late.VALUE
        """))
    return tmp_path


def run(*command, cwd, **environment):
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=300,
                           env=inherited | environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("where", ["beside", "path"])
def test_modules(order, where, folder, tmp_path):
    """A script imports its own modules. Gradring imports the repository's modules of the same names, even if it does
    so later."""
    library = ("import gradring\nfrom gradring import gateware\n"
               "print(gateware.SkidBuffer.__name__, gradring.Adam().name)\n")
    use = textwrap.dedent("""
        import sim, hdl, boards as b
        from host import who

        def again():
            import sim as same
            return same is sim

        print(sim.who(), hdl.WHO, b.who(), who(), again())
        """)
    (tmp_path / "elsewhere").mkdir()
    script = (tmp_path / "elsewhere" if where == "path" else folder) / "script.py"
    script.write_text(library + use if order == "after" else use + library)
    environment = {"PYTHONPATH": str(folder)} if where == "path" else {}
    lines = run(script, cwd=tmp_path, **environment).splitlines()
    assert sorted(lines) == ["SkidBuffer adam", "script script script script True"]


@pytest.mark.parametrize("order", ["gradring, sim.streams", "sim.streams, gradring"])
def test_package(order, folder):
    """Modules of a package can import each other even if one has the name of a module of this repository."""
    script = folder / "packages" / "script.py"
    script.write_text(f"import {order}\nimport sim\nfrom sim import streams\nfrom sim import *\n"
                      "from gradring import gateware\n"
                      "print(sim.VALUE, streams.late(), sim.streams is streams, gradring.Adam().name, VALUE)\n")
    assert run(script, cwd=folder) == "3 5 True adam 3\n"


def test_missing_module(folder):
    """If an import fails inside a package of the script, the error message is about the script."""
    (folder / "packages" / "sim" / "broken.py").write_text("import no_module_of_this_name\n")
    script = folder / "packages" / "script.py"
    script.write_text("import gradring\ntry:\n    from sim import broken\nexcept ModuleNotFoundError as error:\n"
                      "    print(error)\ntry:\n    from sim import absent\nexcept ImportError as error:\n"
                      "    print('absent' in str(error))\n")
    assert run(script, cwd=folder) == "No module named 'no_module_of_this_name'\nTrue\n"


def test_commands(folder):
    """The command runs even if the working directory or PYTHONPATH contains files with conflicting names."""
    for environment in ({}, {"PYTHONPATH": str(folder)}):
        assert run("-m", "gradring", "--version", cwd=folder, **environment).startswith("gradring ")


def test_starter(folder):
    """The program that starts ranks finds the repository's modules first, and can run a module like ``python -m``."""
    assert [names.__file__] == launch._STARTER
    units = run("-P", names.__file__, "boards.verilog", "--list", cwd=folder, PYTHONPATH=str(folder))
    assert "node" in units.splitlines()
    # A script gets its own modules in its process only if the script's folder is on the path.
    (folder / "script.py").write_text("import sim, host\nfrom hdl import who\nprint(sim.who(), host.WHO, who())\n")
    program = ("import sys, runpy; sys.argv[:] = ['', 'boards.verilog', '--list']\n"
               f"try: runpy.run_path({names.__file__!r}, run_name='__main__')\n"
               "except SystemExit: pass\n"
               "sys.path.insert(0, '.'); runpy.run_path('script.py', run_name='__main__')")
    assert run("-P", "-c", program, cwd=folder) == units + "script script script\n"


def test_nothing_is_done_without_a_clash():
    """Python's import is unchanged if no file has a conflicting name, and in the repository's own tests and tools."""
    program = "import builtins; own = builtins.__import__; import gradring; print(builtins.__import__ is own)"
    assert run("-c", program, cwd=ROOT) == "True\n"
