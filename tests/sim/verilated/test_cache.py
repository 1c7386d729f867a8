import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sim.verilated import cache_folder, toolchain
from sim.verilated.cache import MANIFEST, cached, complete
from sim.verilated.processes import status
from tests.sim.verilated.caches import entry, left

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder for one kind of entry in an empty cache."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "verilog"


def test_keeps_nothing_of_a_failure(folder):
    def build(fresh):
        (fresh / "half").write_text("half")
        raise toolchain.ToolError("no")

    with pytest.raises(toolchain.ToolError, match=r"^no$"):
        cached(entry(), build)
    assert left(folder) == []


def test_waits_for_another(folder):
    """If several processes need the same entry, only one of them builds it."""
    calls = []

    def build(fresh):
        calls.append(fresh)
        both_wait.wait(timeout=10)
        (fresh / "product").write_text("done")

    def want():
        both_wait.set()
        return (cached(entry(), build) / "product").read_text()

    both_wait = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = [future.result(timeout=10) for future in [pool.submit(want) for _ in range(3)]]
    assert results == ["done"] * 3
    assert len(calls) == 1
    assert left(folder) == [entry().name]


class Builds:
    """Build function that writes a product, another file and a subfolder, and counts how often it is called."""

    def __init__(self):
        self.count = 0

    def __call__(self, folder):
        self.count += 1
        (folder / "product").write_bytes(bytes(range(256)) * 16)
        (folder / "other").write_text("other")
        (folder / "between").mkdir()
        (folder / "between" / "file").write_text("between")


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[:len(data) // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["product", MANIFEST])
@pytest.mark.parametrize("damage", [truncate, empty, flip, Path.unlink])
def test_builds_again_what_is_damaged(folder, damage, name):
    """A damaged file is built again, even by a process that has already read it when it was intact."""
    build = Builds()
    for _ in range(2):
        directory = cached(entry(), build)
    assert build.count == 1
    damage(directory / name)
    assert complete(directory) is False
    for _ in range(2):
        assert (cached(entry(), build) / "product").stat().st_size == 4096
    assert build.count == 2
    assert left(folder) == [entry().name]
    assert sorted(path.name for path in directory.iterdir()) == [MANIFEST, "other", "product"]


def test_what_was_built_before_there_were_manifests(folder):
    cache_folder.make(folder)
    entry().mkdir()
    (entry() / "product").write_text("")
    build = Builds()
    assert (cached(entry(), build) / "product").stat().st_size == 4096
    assert build.count == 1


def test_folders_are_not_kept_and_what_came_later_may_be_there(folder):
    build = Builds()
    directory = cached(entry(), build)
    assert sorted(path.name for path in directory.iterdir()) == [MANIFEST, "other", "product"]
    (directory / "later").write_text("later")
    assert cached(entry(), build) == directory
    assert build.count == 1


@pytest.mark.parametrize("ending", ["design.v", "ring.so"])
def test_damaged_product_ends_no_process(folder, tmp_path, ending):
    """A truncated library is built again, because loading it would crash the process."""
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }')

    def build(fresh):
        toolchain.run([toolchain.compiler(), "-shared", "-fPIC", str(source), "-o", str(fresh / ending)], cwd=fresh)

    path = cached(entry(), build) / ending
    with path.open("r+b") as file:
        file.truncate(4096)
    code = ("import ctypes, sys\nfrom pathlib import Path\nfrom sim.verilated.cache import cached\n"
            "from sim.verilated import toolchain\n"
            f"path = cached(Path({str(path.parent)!r}), lambda folder: toolchain.run([toolchain.compiler(), "
            f"'-shared', '-fPIC', {str(source)!r}, '-o', {ending!r}], cwd=folder)) / {ending!r}\n"
            "assert ctypes.CDLL(str(path)).one() == 1")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


#: Script that builds until it is stopped and, like a compiler, runs a program that starts another program.
BUILDER = """
import os
import re
import signal
import sys
from pathlib import Path
from sim.verilated.cache import cached
from sim.verilated.processes import ended_by_signals, in_parallel, run

# As on a terminal, also where the tests run in the background and ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def build(folder):
    (folder / "large").write_bytes(bytes(4 << 20))
    script = "import subprocess, sys; subprocess.run(['sleep', '300'])"
    def work(number):
        os.write(1, b"started\\n")
        run([sys.executable, "-c", script], cwd=folder)
    in_parallel(work, range(8))

with ended_by_signals():
    cached(Path(sys.argv[1]), build)
"""


@pytest.fixture
def begin():
    """Function that starts a process and returns it while it builds. All processes end with the test."""
    processes = []

    def started(directory):
        process = subprocess.Popen([sys.executable, "-c", BUILDER, str(directory)], cwd=ROOT, stdout=subprocess.PIPE,
                                   text=True)
        processes.append(process)
        assert process.stdout.readline() == "started\n"
        deadline = time.monotonic() + 30
        while not descendants(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    yield started
    for process in processes:
        for number in [process.pid, *descendants(process.pid)] if process.poll() is None else []:
            os.kill(number, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def descendants(process):
    """Process IDs of direct and indirect child processes."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = status(int(path.name))
        if fields:  # no fields if the process has ended
            parents.setdefault(int(fields[1]), []).append(int(path.name))
    pids = [process]
    for number in pids:
        pids += parents.get(number, [])
    return pids[1:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing(begin, folder, number):
    """A signal that ends a build leaves neither a folder nor a running program."""
    process = begin(entry())
    children = descendants(process.pid)
    process.send_signal(number)
    code = process.wait(timeout=20)
    assert code == 128 + number
    assert left(folder) == []
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(folder):
    """Names in a folder, without their digests and random parts."""
    return sorted(re.sub(r"-[0-9a-f]{24}(-[0-9a-f]{8})?", "", name) for name in left(folder))


def test_the_next_build_removes_what_a_kill_has_left(begin, folder):
    """Files left by killed builds are removed, but the files of a running build are not."""
    killed, going = begin(entry("a")), begin(entry("b"))
    children = descendants(killed.pid)
    killed.kill()
    killed.wait(timeout=20)
    for child in children:
        os.kill(child, signal.SIGKILL)
    assert names(folder) == [".a", ".a.lock", ".b", ".b.lock"]
    cached(entry("c"), Builds())
    assert names(folder) == [".b", ".b.lock", "c"]
    assert len(list((folder / ".users").iterdir())) == 2  # this process and the one still running
    going.terminate()
    assert going.wait(timeout=20) == 128 + signal.SIGTERM
    assert left(folder) == [entry("c").name]
