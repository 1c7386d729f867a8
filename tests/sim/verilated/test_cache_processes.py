"""Several processes that share one cache: builds that are killed or concurrent, and removal of entries in use."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.verilated import cache_bound, cache_content
from sim.verilated.cache import complete
from sim.verilated.cache_entries import remove
from tests.sim.verilated.caches import entry

ROOT = Path(__file__).parents[3]

@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADRING_CACHE", str(tmp_path))
    monkeypatch.setattr(cache_bound, "_added", 0)
    return tmp_path


#: Script that builds a ring from real Verilog, with stubs of Verilator and the compiler that write the expected
#: files. At the selected stage, the process prints the name of the stage and waits to be killed.
BUILDER = """
import sys
from pathlib import Path
from sim.verilated import build, cache, toolchain, verilog
from sim.verilated.build import build_ring
from tests.sim.verilated.probe import Probe

stage = sys.argv[1]

def reached(name):
    print(name, flush=True)
    if name == stage:
        sys.stdin.read()  # until the end of this process

def run(command, *, cwd, log=None, env=None):
    if "-p" in command:
        (cwd / "design.v").write_text("half of it")
        reached("Verilog")
        return real(command, cwd=cwd, log=log, env=env)
    if "--cc" in command:
        (cwd / "obj").mkdir()
        for name in ("Vnode.cpp", "Vnode___024root.h"):
            (cwd / "obj" / name).write_text("")
        reached("Verilate")
        return ""
    product = command[command.index("-o") + 1]
    (cwd / product).write_text("half of it")
    if "Vnode" in product:
        reached("compile")
    if "-shared" in command:
        reached("link")
    (cwd / product).write_text(product)
    return ""

def seal(folder):
    size = sealed(folder)
    if "ring-" in folder.name and "runtime" not in folder.name:
        reached("seal")
    return size

real, toolchain.run = toolchain.run, run
sealed, cache._seal = cache._seal, seal
library = build_ring(Probe())
print(library.path, flush=True)
"""


@pytest.fixture
def begin(cache):
    """Function that starts processes, which are terminated after the test."""
    begun = []

    def start(script, argument):
        begun.append(subprocess.Popen([sys.executable, "-c", script, str(argument)], cwd=ROOT, text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait(timeout=20)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def lines_until(process, last):
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1] == last:
            return lines
    raise AssertionError(f"the process ended without {last!r}, after {lines!r}")


def left(folder):
    """Names of hidden files in the cache, except for locks, and of files in which users of folders are recorded."""
    return sorted(path.name for kind in folder.iterdir() if kind.is_dir() for path in kind.rglob(".*")
                  if path.name not in (".lock", ".users")) + [
        str(path) for path in folder.glob("*/.users/*")]


STAGES = ("Verilog", "Verilate", "compile", "link", "seal")


def test_killed_at_each_stage(cache, begin):
    """After a kill at any stage, the next build works like a first build, and removes everything that is left
    over."""
    for stage in STAGES:
        process = begin(BUILDER, stage)
        lines_until(process, stage)
        process.kill()
        process.communicate(timeout=20)
        assert left(cache), stage
    out, _ = begin(BUILDER, "none").communicate(timeout=120)
    *stages, path = out.splitlines()
    assert sorted(set(stages)) == ["Verilate", "compile", "link", "seal"]  # Verilog was already complete
    path = Path(path)
    assert path.read_text() == "ring.so"
    assert complete(path.parent)
    assert not (path.parent / "obj").exists()
    assert [name for name in left(cache) if "/verilog/.users/" not in name] == []  # killed builds have left nothing
    # There are four entries: for the component, its design, the runtime of Verilator and the ring.
    assert sorted(item.kind for item in cache_content.entries()) == ["verilated", "verilated", "verilog", "verilog"]
    assert cache_content.prune(most=1 << 60).gone == ()
    assert left(cache) == []


def test_two_at_once_build_once(cache, begin):
    """Of two processes at the same time, the second one waits for the first one's build and uses it."""
    first = begin(BUILDER, "link")
    lines_until(first, "link")
    second = begin(BUILDER, "none")
    deadline = time.monotonic() + 60
    while len(list(cache.glob("verilated/.users/*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.stdin.close()
    first.stdin = None
    built, reused = (process.communicate(timeout=60)[0].split() for process in (first, second))
    assert built[-2:] == ["seal", built[-1]]
    assert reused == [built[-1]]
    assert first.returncode == second.returncode == 0
    assert left(cache) == []


#: Script that keeps the cache folder in its argument in use until its standard input ends.
USER = """
import sys
from pathlib import Path
from sim.verilated.cache import cached
cached(Path(sys.argv[1]), lambda folder: (folder / "product").write_text("product"))
print("used", flush=True)
sys.stdin.read()
"""


def test_what_is_used_is_not_removed(cache, begin):
    """While a process uses an entry, the entry is not removed, whether on request or to meet the size limit."""
    path = entry()
    process = begin(USER, path)
    lines_until(process, "used")
    assert remove(path) is False
    removed = cache_content.prune(most=-1)
    assert (removed.gone, [item.path for item in removed.kept]) == ((), [path])
    assert complete(path)
    process.kill()
    process.communicate(timeout=20)
    removed = cache_content.prune(most=-1)
    assert [item.path for item in removed.gone] == [path]
    assert left(cache) == []


def test_a_cache_that_is_cleared_breaks_no_build(begin):
    """Clearing the cache keeps the folder in which a build is running, and the entries that this build has used."""
    process = begin(BUILDER, "link")
    lines_until(process, "link")
    removed = cache_content.prune(most=-1)
    assert removed.gone == ()
    assert {item.kind for item in removed.kept} == {"verilog", "verilated"}
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert complete(Path(out.split()[-1]).parent)
    assert len(cache_content.prune(most=-1).gone) == 4
    assert cache_content.entries() == []


#: Script that runs short processes for two seconds: some remove unused entries, and all read the entries they need.
CROWD = """
import os
import random
import sys
import time
import traceback
from sim.verilated import cache_content, cache_folder
from sim.verilated.cache import cached

def build(folder):
    (folder / "product").write_text(folder.name)

def live():
    if random.random() < 0.3:
        cache_content.prune(most=-1)
    paths = [cached(cache_folder.folder("verilog") / f"{name}-{name * 24}", build)
             for name in random.sample("abcdef", 3)]
    for path in paths:
        assert path.name in (path / "product").read_text()

random.seed(int(sys.argv[1]))
end = time.monotonic() + 2
while time.monotonic() < end:
    random.random()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            live()
            status = 0
        except Exception:  # of any kind: the child must not go on as its parent would
            traceback.print_exc()
        finally:
            os._exit(status)  # without a word of farewell, as after a signal
    assert os.waitpid(child, 0)[1] == 0, sys.argv[1]
"""


def test_many_want_and_remove_the_same(cache):
    """A process that has requested an entry can read it until the process ends."""
    processes = [subprocess.Popen([sys.executable, "-c", CROWD, str(seed)], cwd=ROOT) for seed in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    cache_content.prune(most=-1)
    assert cache_content.entries() == []
    assert left(cache) == []
