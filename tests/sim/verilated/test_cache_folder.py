# amaranth: UnusedElaboratable=no
"""Location and size limit of the cache, inputs of digests, and the rejection of unsuitable folders."""

import ctypes
import errno
import os
import platform
import pwd
import shutil
import stat
import sys
import tempfile
import time
import types
from pathlib import Path

import platformdirs
import pytest

from hdl.streams.stream import SkidBuffer
from sim.verilated import cache_bound, cache_content, cache_folder, toolchain, verilog
from sim.verilated.cache import cached, complete
from sim.verilated.toolchain import ToolError
from tests.refusals import refuses
from tests.sim.verilated.caches import entry, make, write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(cache_folder.LIMIT, raising=False)
    monkeypatch.setattr(cache_bound, "_added", 0)
    return tmp_path / "cache"


def nobody(monkeypatch, home):
    """Simulate a user without a home folder."""
    def unknown(*arguments):
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME", cache_folder.VARIABLE):
        monkeypatch.setenv(name, "")  # makes monkeypatch restore the variable after the test
        monkeypatch.delenv(name)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


class TestRoot:
    def test_default(self, monkeypatch):
        """The default folder of the cache is neither in the program's folder nor in the working directory."""
        for value in (None, ""):
            monkeypatch.delenv(cache_folder.VARIABLE, raising=False)
            if value is not None:
                monkeypatch.setenv(cache_folder.VARIABLE, value)
            assert cache_folder.root() == Path(platformdirs.user_cache_dir("gradring", appauthor=False))
            assert cache_folder.root().is_absolute()

    def test_chosen(self, monkeypatch, tmp_path):
        monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path))
        assert cache_folder.folder("verilog") == tmp_path / "verilog"
        with pytest.raises(ValueError, match=r"^Kind must be one of verilog, verilated, .*, not 'other'$"):
            cache_folder.folder("other")

    def test_relative(self, monkeypatch, tmp_path):
        """A relative path is made absolute when it is first used, for this process and its children."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(cache_folder.VARIABLE, "here")
        assert cache_folder.root() == tmp_path / "here"
        monkeypatch.chdir("/")
        assert cache_folder.root() == tmp_path / "here"
        assert os.environ[cache_folder.VARIABLE] == str(tmp_path / "here")

    def test_home(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv(cache_folder.VARIABLE, "~/builds")
        assert cache_folder.root() == tmp_path / "builds"
        monkeypatch.setenv(cache_folder.VARIABLE, "~nobody-of-that-name/builds")
        with pytest.raises(ToolError, match=r"^GRADRING_CACHE must be a folder, not '~nobody.*no such user$"):
            cache_folder.root()

    @pytest.mark.parametrize("home", [None, "relative"])
    def test_no_home(self, home, monkeypatch, tmp_path):
        """A user without a home folder gets a private folder, which tools started by the process use too."""
        nobody(monkeypatch, home)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert cache_folder.checked() is None
        private = tmp_path / f"gradring-{os.geteuid()}"
        assert cache_folder.root() == cache_folder.root() == private / "gradring"
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert platformdirs.user_cache_dir("YoWASP", appauthor=False) == str(private / "YoWASP")
        path = cached(entry(), write)
        assert path.is_relative_to(private)
        assert cache_content.entries()

    @pytest.mark.parametrize("kind", ["file", "link", "mode", "owner", "none"])
    def test_no_home_and_no_private_folder(self, kind, monkeypatch, tmp_path):
        """Files of another user in the temporary folder are not used."""
        nobody(monkeypatch, None)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        private = tmp_path / f"gradring-{os.geteuid()}"
        if kind == "file":
            private.write_text("")
        elif kind == "link":
            (tmp_path / "other").mkdir(mode=0o700)
            private.symlink_to(tmp_path / "other")
        elif kind == "none":
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        else:
            private.mkdir(mode=0o700)
            private.chmod(0o750 if kind == "mode" else 0o700)
        if kind == "owner":
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            (tmp_path / "gradring-12345").mkdir(mode=0o700)
        with pytest.raises(ToolError, match=r"^Home folder must be known for the cache, and [^\n]* in its stead[^\n]*"
                                            r" set GRADRING_CACHE to a folder$"):
            cache_folder.root()

    def test_backups_leave_it_out(self, folder):
        cached(entry(), write)
        assert (folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")

    def test_others_may_read_it(self, folder):
        """The folder's permissions follow the umask, unlike a temporary folder's, and no other user can write to
        it."""
        path = cached(entry(), write)
        mask = os.umask(0o22)
        os.umask(mask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o755 & ~mask


@pytest.mark.parametrize(("text", "expected"), [
    ("5GB", 5 * 10**9), ("500 mb", 5 * 10**8), ("1.5GiB", 3 * 2**29), ("17", 17), ("2k", 2000), ("0", 0),
    ("1TB", 10**12),
])
def test_size(text, expected):
    assert cache_folder.size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 apples", "1e9", "i"])
def test_no_size(text):
    refuses(f"Size must be a number of bytes such as 5GB or 500MB, not '{text}'", cache_folder.size, text)


class TestRefusals:
    """Unsuitable folders for the cache are rejected with a one-line message that names the folder and the
    variable."""

    def build(self):
        return cached(entry(), lambda fresh: (fresh / "a").write_text("a"))

    def test_a_file(self, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "file"))
        for function in (self.build, cache_content.entries, lambda: cache_content.prune(most=-1)):
            with pytest.raises(ToolError, match=rf"^Cache folder {tmp_path}/file must be a folder, not a file: set "
                                                r"GRADRING_CACHE to another path$"):
                function()

    def refuse(self, monkeypatch, code):
        """Simulate an operating system error, because file permissions do not restrict every user."""
        real = os.open

        def fail(path, flags, *arguments, **options):
            if flags & os.O_CREAT:
                raise OSError(code, os.strerror(code), str(path))
            return real(path, flags, *arguments, **options)

        monkeypatch.setattr(os, "open", fail)

    @pytest.mark.parametrize(("code", "message"), [
        (errno.EROFS, r"read-only file system; "),
        (errno.EACCES, r"permission denied; "),
        (errno.ENOSPC, r"no space left on device; make room there \('gradring cache' shows .*\), or "),
    ])
    def test_nothing_can_be_written(self, folder, monkeypatch, code, message):
        """If the cache is not writable, its complete entries can still be used."""
        path = make("verilog", "b")
        self.refuse(monkeypatch, code)
        with pytest.raises(ToolError, match=rf"^{folder}/verilog cannot be written: {message}"
                                            r"set GRADRING_CACHE to a folder that can be$"):
            self.build()
        assert cached(path, lambda fresh: pytest.fail("built again")) == path

    def test_the_disk_becomes_full(self, folder):
        def build(fresh):
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(ToolError, match=r"/a-a{24} cannot be written: no space left on device; make room"):
            cached(entry(), build)
        assert cache_content.entries() == []

    def test_a_tool_fails_for_a_full_disk(self, folder, monkeypatch):
        """If a tool fails because the disk is full, a one-line error says so, without the tool's output."""
        def build(fresh):
            monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=4096))
            raise ToolError("c++ failed with exit code 1\nfatal error: error writing to node.o")

        with pytest.raises(ToolError, match=r"^[^\n]* cannot be written: no space left on device; make room[^\n]*$"):
            cached(entry(), build)

    def test_a_source_is_missing(self, folder):
        with pytest.raises(ToolError, match=r" could not be built: no such file or directory \(.*/absent\)$"):
            cached(entry(), lambda fresh: (fresh / "absent").read_text())

    def test_limit(self, folder, monkeypatch):
        """An invalid size limit is rejected before anything is built."""
        monkeypatch.setenv(cache_folder.LIMIT, "much")
        with pytest.raises(ToolError, match=r"^GRADRING_CACHE_LIMIT: Size must be .* such as 5GB .*, not 'much'$"):
            cached(entry(), lambda fresh: pytest.fail("built"))


class TestBound:
    def test_the_oldest_go(self, folder):
        old, recent = make("verilog", "a", 100_000, age=500), make("verilated", "b", 100_000, age=100)
        oldest = make("placement", "c", 100_000, age=900)
        assert [entry.path for entry in cache_content.entries()] == [oldest, old, recent]
        assert cache_content.prune(most=10**9).gone == ()
        removed = cache_content.prune(most=250_000)
        assert [entry.path for entry in removed.gone] == [oldest]
        assert 100_000 <= removed.size <= 120_000
        removed = cache_content.prune(most=250_000, before=time.time() - 300)
        assert [entry.path for entry in removed.gone] == [old]
        assert [entry.path for entry in cache_content.entries()] == [recent]

    def test_use_makes_young(self, folder):
        old, _ = make("verilog", "a", age=500), make("verilog", "b", age=100)
        cached(old, lambda fresh: pytest.fail("built again"))
        assert cache_content.entries()[-1].path == old

    def test_builds_keep_to_the_limit(self, folder, monkeypatch):
        """When a build removes entries, it removes enough that the next build need not, but no entries of this
        process."""
        monkeypatch.setenv(cache_folder.LIMIT, "1MB")
        paths = [make("verilog", letter, 90_000, age=500 - number) for number, letter in enumerate("0123456789a")]
        own = cached(entry("f"), lambda fresh: (fresh / "product").write_bytes(bytes(90_000)))
        left = [entry.path for entry in cache_content.entries()]
        assert left == [*paths[-len(left) + 1:], own]
        assert 700_000 < sum(entry.size for entry in cache_content.entries()) <= 900_000

    def test_short_processes_keep_to_the_limit(self, folder, monkeypatch):
        """The first build of a process checks the size of the cache, unless another process has just checked it."""
        monkeypatch.setenv(cache_folder.LIMIT, "1MB")
        old = make("verilog", "a", 2_000_000, age=500)
        monkeypatch.setattr(cache_bound, "_added", None)
        cached(entry("f"), write)
        assert not old.exists()
        make("verilog", "a", 2_000_000, age=500)
        monkeypatch.setattr(cache_bound, "_added", None)
        cached(entry("e"), write)
        assert old.exists()

    def test_files_of_others_stay(self, folder):
        """If the cache variable names a folder that is not a cache, the files in this folder are not removed."""
        make("verilog", "a")
        (folder / "verilog" / "project").mkdir()
        (folder / "photographs").mkdir()
        (folder / "verilog" / "project" / "a.v").write_text("module a; endmodule")
        assert len(cache_content.prune(most=-1).gone) == 1
        assert (folder / "verilog" / "project" / "a.v").exists()
        assert (folder / "photographs").is_dir()

    def test_without_a_cache(self, folder):
        assert cache_content.entries() == []
        assert cache_content.prune(most=-1) == cache_content.Removed((), ())
        assert not folder.exists()


# Tests of the inputs of digests.


@pytest.fixture
def compilers(tmp_path, monkeypatch):
    """Function that replaces the system's compiler with a script that adds options."""
    real = toolchain.compiler()

    def choose(*options, name="cxx"):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\nexec {real} {" ".join(options)} "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        for function in (toolchain.compiler, toolchain.target, toolchain.verilator):
            function.cache_clear()
        return path

    yield choose
    monkeypatch.undo()
    for function in (toolchain.compiler, toolchain.target, toolchain.verilator):
        function.cache_clear()


#: Option for an instruction set extension that some or all processors of this architecture have.
EXTENSION = {"x86_64": "-mpopcnt", "aarch64": "-march=armv8-a+crc"}.get(platform.machine(), "-D__EXTENSION__")


def test_target(compilers, monkeypatch):
    """Digests include the version and target processor of the compiler, but not its path."""
    first = toolchain.target()
    compilers()
    assert toolchain.target() == first
    compilers(name="other")
    assert toolchain.target() == first
    compilers(EXTENSION)
    assert toolchain.target() != first
    compilers("-D__VERSION__=another")
    assert toolchain.target() != first
    compilers()
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert toolchain.target() != first


def test_a_compiler_that_does_not_work(compilers):
    compilers("--no-such-option")
    message = r"(?s)cxx -dM -E -x c\+\+ - failed with exit code \d+; CXX must name .*such-opt"
    with pytest.raises(ToolError, match=message):
        toolchain.target()


def test_a_library_of_another_processor_is_not_loaded(folder, compilers, monkeypatch):
    """If a compiler script enables an instruction set extension, another library is built (in this test, only its
    harness)."""
    real = toolchain.run

    def run(command, *, cwd, env=None):
        product = command[command.index("-o") + 1] if "-o" in command else "log"
        (cwd / product).write_text("")
        if "-shared" not in command:
            return ""
        return real([command[0], "-shared", "-fPIC", "number.cpp", "-o", product], cwd=cwd)

    monkeypatch.setattr(toolchain, "run", run)

    def library():
        return toolchain.shared_library(
            "unit", "module unit(input a, output o); assign o = ~a; endmodule", headers={},
            harness=[folder.parent / "number.cpp"])

    (folder.parent / "number.cpp").write_text(
        "#ifndef NUMBER\n#define NUMBER 1\n#endif\n" 'extern "C" int number() { return NUMBER; }\n')
    compilers()
    first = library()
    assert library() == first
    compilers(EXTENSION, "-DNUMBER=2")
    second = library()
    assert second != first
    assert [ctypes.CDLL(str(path)).number() for path in (first, second)] == [1, 2]
    assert len(cache_content.entries()) == 4  # two libraries, and Verilator's runtime for each of them
    # Overwrite the first library with the second, as might happen by mistake.
    shutil.copyfile(second, first)
    assert not complete(first.parent)


def test_makefiles_get_no_options_of_the_user(monkeypatch):
    """Makefiles ignore a user's own options, because digests do not include them."""
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    monkeypatch.setenv("OPT_FAST", "-Ofast")
    assert not {"CXXFLAGS", "OPT_FAST"} & toolchain.environment().keys()


class TestVerilog:
    def convert(self, name):
        return verilog.convert(SkidBuffer(shape=3), name=name)

    def test_changed_by_hand(self, folder):
        """Verilog that was edited by hand is built again, even if the process has read it before."""
        first = self.convert("buffer")
        path, = folder.glob("verilog/buffer-*/design.v")
        path.write_text(first.text.replace("buffer", "puffer"))
        assert self.convert("buffer") == first
        assert path.read_text() == first.text

    def test_deleted(self, folder):
        first = self.convert("buffer")
        shutil.rmtree(folder)
        assert self.convert("buffer") == first

    def test_another_way_to_make_it(self, folder, monkeypatch):
        """If another clone runs Yosys in a different way, it does not use the entries of this clone."""
        self.convert("buffer")
        monkeypatch.setattr(toolchain, "source", lambda *functions: "another script")
        self.convert("buffer")
        designs = [path for path in folder.glob("verilog/buffer-*") if "-of-" not in path.name]
        assert len(designs) == len(list(folder.glob("verilog/buffer-of-*"))) == 2  # one for each component


def test_results_are_not_in_the_cache():
    assert toolchain.BUILD.parent.samefile(Path(__file__).parents[3])
    assert cache_folder.root() != toolchain.BUILD
    assert not cache_folder.root().is_relative_to(Path(sys.prefix))
