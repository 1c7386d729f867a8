"""The wheel works next to other packages and with various versions of dependencies; it has one top-level package."""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import setup

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Wheel that is built from only the files in the repository."""
    clone, target = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        if not name.startswith(("tests/", "docs/")) and (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
                    "--wheel-dir", target, clone], check=True, timeout=300)
    (path,) = target.glob("gradring-*.whl")
    return path


def test_one_package(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gradring"}
        (top,) = (name for name in names if name.endswith("top_level.txt"))
        assert file.read(top) == b"gradring\n"
        sources = {path.relative_to(ROOT).as_posix() for folder in (*setup.PACKAGES, setup.EXAMPLES)
                   for path in (ROOT / folder).rglob("*")
                   if path.suffix in (".py", ".cpp", ".h", ".html", ".csv", ".npz", ".v", ".sv")}
        sources |= {f"torch/{path.name}" for path in (ROOT / "gradring" / "torch").glob("*.py")}
        assert sources == {name.removeprefix("gradring/") for name in names if name.startswith("gradring/") and
                           name.count("/") > 1}


def others(folder):
    """Create another project's packages, with the names of this project's packages."""
    for name in setup.PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('of another project')\n")


def test_beside_others(wheel, tmp_path):
    """Training and sums over ranks import only packages of the wheel, even if other installed packages have the same
    names."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    others(site)
    (tmp_path / "script.py").write_text(
        "import torch, torch.distributed as dist, gradring, gradring.torch\n"
        "dist.init_process_group()\n"
        "total = torch.arange(50.0)\n"
        "dist.all_reduce(total)\n"
        "print(gradring.__file__, total.sum().item())\n"
        "dist.destroy_process_group()\n")

    def run(*command):
        ended = subprocess.run([sys.executable, "-P", "-m", "gradring", *command], cwd=tmp_path, text=True,
                               env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, timeout=600)
        assert ended.returncode == 0, ended.stderr
        assert "bit for bit" in ended.stdout
        return ended.stdout

    # With two state planes, the nodes are the same as in other tests, so they share a library.
    run("train", "--nodes", "2", "--steps", "1", "--state-planes", "2")
    pytest.importorskip("torch")
    assert f"{site / 'gradring' / '__init__.py'} 1225.0\n" in run("launch", "-n", "1", "script.py")
    assert (tmp_path / "build" / "launch" / "report.json").exists()


def test_same_builds(wheel, tmp_path):
    """An installed wheel uses the builds of a clone with the same sources, because their digests are equal."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    program = ("import time; from pathlib import Path; import {0}sim.verilated as package; "
               "from {0}sim.verilated import build, toolchain, verilog; "
               "toolchain._LOADED = time.time() + 10; "  # sources that change while they are loaded get no digest
               "print(toolchain.digest(verilog.sources(), toolchain.source(build.build_ring, build.compile_library), "
               "*map(toolchain.text, sorted(Path(package.__path__[0]).glob('*.py')))))")
    digests = {subprocess.run([sys.executable, "-P", "-c", program.format(prefix)], cwd=folder, check=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True).stdout
               for prefix, folder in (("", ROOT), ("gradring.", tmp_path))}
    assert len(digests) == 1


def test_tested_versions():
    """constraints.txt pins each dependency to the tested version, which is within the version range of the
    dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = map(Requirement, (ROOT / "constraints.txt").read_text().split())
    tested = {line.name.lower().replace("_", "-"): line.specifier for line in lines}
    base = [Requirement(text) for text in project["dependencies"]]
    extras = [Requirement(text) for texts in project["optional-dependencies"].values() for text in texts]
    for requirement in [*base, *extras]:
        (pin,) = tested[requirement.name.lower()]
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), requirement
    for requirement in base:
        assert {bound.operator for bound in requirement.specifier} == {">=", "<"}, requirement


#: A user's program with type annotations.
TYPED = """\
import numpy as np
import numpy.typing as npt

import gradring
import gradring.torch

Vector = npt.NDArray[np.float32]


def mean(shares: Vector) -> tuple[Vector, int | None]:
    node: gradring.NodeConfig = gradring.node_for(shares.shape[1], nodes=4)
    with gradring.simulate(nodes=4, length=shares.shape[1], optimizer=gradring.AdamW(1e-3), node=node) as job:
        sums, figures = job.all_reduce(shares)
        weights, cost = job.step(shares)
        total: gradring.Figures = figures + cost
        return sums / np.float32(job.nodes), total.cycles
"""


def test_quick_start(wheel, tmp_path):
    """The quick start works outside of a clone, with the oldest numpy and next to packages of the same names."""
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment" / "bin" / "python"
    # The digest of a node's Verilog covers the versions of Amaranth and Yosys. If these match, nothing is built
    # again.
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", "--no-deps",
                    wheel], check=True, timeout=300)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    least = next(re.search(r">=([\d.]+)", text)[1] for text in needed if text.startswith("numpy"))
    pins = [line for line in (ROOT / "constraints.txt").read_text().split() if not line.startswith("numpy==")]
    (tmp_path / "pins.txt").write_text("\n".join([*pins, f"numpy=={least}.0"]))
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--constraint", tmp_path / "pins.txt", *needed],
                   check=True, timeout=600)
    page = (ROOT / "docs" / "quick-start.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    others(tmp_path)
    site = next((tmp_path / "environment").glob("lib/*/site-packages"))
    before = sorted(path for path in site.rglob("*") if "__pycache__" not in path.parts)

    def run(*command):
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
                               check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run(python.with_name("gradring"), "examples")
    for path in (path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".sv", ".cpp")):
        assert (tmp_path / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    run(python, "examples/amaranth_design.py")
    printed = run(python, "-c", program)
    assert re.search(r"^[\d,]+ cycles, at least [\d,]+; [\d,]+ words on the links$", printed, re.MULTILINE)
    assert re.search(r"^[\d,]+ cycles, density 100\.0%$", printed, re.MULTILINE)
    assert run(python.with_name("gradring"), "--version").startswith("gradring 0.2.0\n")
    assert sorted(path for path in site.rglob("*") if "__pycache__" not in path.parts) == before  # nothing is written
    assert run(python, "-c", "import numpy; print(numpy.__version__)") == f"{least}.0\n"
    (tmp_path / "typed.py").write_text(TYPED)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", "types", "--python-executable",
            python, "typed.py")
    assert run(*mypy) == "Success: no issues found in 1 source file\n"
    (tmp_path / "typed.py").write_text(TYPED.replace("total.cycles", "figures"))
    ended = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Incompatible return value type" in ended.stdout  # mypy must not treat types of the package as Any


@pytest.mark.parametrize(("text", "expected"), [
    ("from hdl.ring import link\n", "from gradring.hdl.ring import link\n"),
    ("if True:\n    from host import cli; x = 'é', 'hdl.node'\n",
     "if True:\n    from gradring.host import cli; x = 'é', 'gradring.hdl.node'\n"),
    ('unit("hdl.optimizer.burst:Streamed", "a.hdl.node", "hdl.", "hdl")\n',
     'unit("gradring.hdl.optimizer.burst:Streamed", "a.hdl.node", "hdl.", "hdl")\n'),
    ("from hdlc import x\nfrom . import host\n", "from hdlc import x\nfrom . import host\n"),
])
def test_within(text, expected):
    assert setup.within(text) == expected


def test_imports_that_cannot_move():
    with pytest.raises(ValueError, match=r"^Line 2: modules of hdl, sim, host, boards must be imported by 'from'$"):
        setup.within("x = 1\nimport hdl.node\n")
    for text in ("x = r'hdl.node'\n", "x = f'hdl.{unit}'\n"):
        with pytest.raises(ValueError, match=r"^Line 1: the name of a module must be a plain string$"):
            setup.within(text)
