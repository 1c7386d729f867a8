import ast
import errno
import fcntl
import json
import math
import os
import shutil
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from host import output
from sim import json_files

ROOT = Path(__file__).parents[2]


def test_prepare_makes_folders(tmp_path):
    folder = tmp_path / "new" / "deep"
    assert output.prepare(folder, files=("report.json",), space=1) == folder
    assert output.prepare(folder, files=("report.json",)) == folder
    assert list(folder.iterdir()) == []


class TestRefusals:
    def test_file_in_place_of_the_folder(self, tmp_path):
        (tmp_path / "taken").write_text("")
        with pytest.raises(output.OutputError, match=r"^Output must be a folder, not the file .*/taken$"):
            output.prepare(tmp_path / "taken")
        with pytest.raises(output.OutputError, match=r"/taken/below cannot be written: not a directory; "):
            output.prepare(tmp_path / "taken" / "below")

    def test_folder_in_place_of_a_file(self, tmp_path):
        (tmp_path / "report.json").mkdir()
        with pytest.raises(output.OutputError, match=r"/report.json must be a file or free, not a folder"):
            output.prepare(tmp_path, files=("report.png", "report.json"))

    def test_unwritable(self, tmp_path, monkeypatch):
        """An unwritable file gives an error. It is simulated, because access rights do not restrict every user."""
        def refuse(path, *arguments, **options):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr(type(tmp_path), "open", refuse)
        message = r"/report.json cannot be written: permission denied; choose another folder with --output$"
        with pytest.raises(output.OutputError, match=message):
            output.prepare(tmp_path, files=("report.json",))

    def test_long_name(self, tmp_path):
        with pytest.raises(output.OutputError, match=r"cannot be written: file name too long; "):
            output.prepare(tmp_path / ("x" * 300))

    @pytest.mark.parametrize(("name", "message"), [
        ("a\0b", r"^Output folder must have a name without zero bytes, not '.*a\\x00b'$"),
        ("\ud800", r"^Output folder must have a name that the system's encoding can spell, not '.*\\ud800'$"),
    ])
    def test_names(self, tmp_path, name, message):
        with pytest.raises(output.OutputError, match=message):
            output.prepare(tmp_path / name)

    def test_space(self, tmp_path, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=999))
        output.prepare(tmp_path, space=999)
        with pytest.raises(output.OutputError, match=r" must have 1,000 bytes free, not 999: make room, "):
            output.prepare(tmp_path, space=1000)


class TestReplacing:
    def test_json(self, tmp_path):
        path = tmp_path / "new" / "report.json"
        output.write_json(path, {"a": [1, 0.1]})
        output.write_json(path, {"a": [2, 0.1]})
        assert json.loads(path.read_text()) == {"a": [2, 0.1]}
        assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]

    def test_json_of_any_number(self, tmp_path):
        """Numbers that JSON cannot represent become null and are listed under "not_finite", at any nesting level."""
        path = tmp_path / "report.json"
        value = {"rows": [{"loss": np.float64("nan"), "cycles": 3}, (1.5, -math.inf)], "rate": np.float32(0.5).item(),
                 "per": {"a": {"b": math.inf}}, 3: math.inf}
        output.write_json(path, value)
        assert json_files.read(path) == {
            "rows": [{"loss": None, "cycles": 3}, [1.5, None]], "rate": 0.5, "per": {"a": {"b": None}}, "3": None,
            "not_finite": {"rows[0].loss": "nan", "rows[1][1]": "-inf", "per.a.b": "inf", "3": "inf"}}
        output.write_json(path, json_files.sealed(value))
        assert json_files.read_sealed(path)["not_finite"]["per.a.b"] == "inf"
        output.write_json(path, [math.nan])
        assert json_files.read(path) == [None]
        assert json_files.finite({"a": [1, "nan", None]}) == {"a": [1, "nan", None]}

    def test_error_in_the_block(self, tmp_path):
        path = tmp_path / "kept"
        output.write_bytes(path, b"old")

        def stop():
            with output.replacing(path) as file:
                file.write(b"new")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            stop()
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_full_disk(self, tmp_path, monkeypatch):
        """If the disk is full, the error message names the file, and the old file is kept."""
        path = tmp_path / "report.json"
        output.write_json(path, 1)

        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(output.OutputError) as caught:
            output.write_json(path, 2)
        assert str(caught.value) == (f"{path} cannot be written: no space left on device; make room, or choose "
                                     f"another folder with --output")
        assert caught.value.errno == errno.ENOSPC
        assert json.loads(path.read_text()) == 1
        assert list(tmp_path.iterdir()) == [path]


class TestTwoAtOnce:
    def test_no_file_is_torn(self, tmp_path):
        """If two runs write the same file, it is complete afterwards, with the contents from the run that ends
        last."""
        path = tmp_path / "report.json"
        begun, go_on = threading.Event(), threading.Event()

        def slow():
            with output.replacing(path) as file:
                file.write(b"slow, ")
                file.flush()
                begun.set()
                assert go_on.wait(20)
                file.write(b"and whole")

        thread = threading.Thread(target=slow)
        thread.start()
        assert begun.wait(20)
        output.prepare(tmp_path, files=("report.json",))
        output.write_bytes(path, b"quick")
        assert path.read_bytes() == b"quick"
        go_on.set()
        thread.join(20)
        assert path.read_bytes() == b"slow, and whole"
        assert list(tmp_path.iterdir()) == [path]

    def test_what_a_kill_has_left_is_removed(self, tmp_path):
        """Partial files are removed only if they are old and no process has them locked."""
        held, young, stale = (tmp_path / f".report.json.{name}.part" for name in ("held", "young", "stale"))
        for path in (held, young, stale):
            path.write_bytes(b"half")
        for path in (held, stale):
            os.utime(path, (time.time() - 3600,) * 2)
        with held.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            output.prepare(tmp_path, files=("report.json",))
        assert sorted(tmp_path.iterdir()) == sorted([held, young])


class TestClaim:
    FILES = ("a.json", "b.png", "deep/c.tar")

    def fill(self, folder, *names, text):
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            (folder / name).write_text(text)

    def names(self, folder):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    @pytest.fixture(autouse=True)
    def released(self):
        yield
        output.release()

    def test_previous(self, tmp_path):
        """An older run's files are first removed from previous/, so that it has the files of only one run."""
        self.fill(tmp_path, "a.json", "deep/c.tar", "own", text="new")
        self.fill(tmp_path / "previous", "a.json", "b.png", "own", text="old")
        assert output.claim(tmp_path, files=self.FILES, keep=("a.json",)) == tmp_path
        assert self.names(tmp_path) == [".run.lock", "a.json", "own", "previous/deep/c.tar", "previous/own"]
        output.release()
        output.claim(tmp_path, files=self.FILES)
        output.release()
        assert self.names(tmp_path) == ["own", "previous/a.json", "previous/own"]
        output.claim(tmp_path, files=self.FILES)  # previous/ stays, because nothing is moved to it
        output.release()
        assert self.names(tmp_path) == ["own", "previous/a.json", "previous/own"]

    def test_links(self, tmp_path):
        """A symbolic link is moved, not its target, and nothing is moved through a link."""
        self.fill(tmp_path, "target", text="own")
        (tmp_path / "a.json").symlink_to(tmp_path / "target")
        output.claim(tmp_path, files=self.FILES)
        assert (tmp_path / "previous" / "a.json").is_symlink()
        assert (tmp_path / "target").read_text() == "own"
        (tmp_path / "previous").rename(tmp_path / "elsewhere")
        (tmp_path / "previous").symlink_to(tmp_path / "elsewhere")
        self.fill(tmp_path, "b.png", text="new")
        with pytest.raises(output.OutputError, match=r"/previous must be a folder or free, not a file or a link: "):
            output.claim(tmp_path, files=self.FILES)

    def test_names_that_are_taken(self, tmp_path):
        self.fill(tmp_path, "previous", text="own")
        output.claim(tmp_path, files=self.FILES)  # moves nothing
        self.fill(tmp_path, "a.json", text="new")
        with pytest.raises(output.OutputError, match=r"/previous must be a folder or free, not a file or a link: "):
            output.claim(tmp_path, files=self.FILES)
        (tmp_path / "previous").unlink()
        (tmp_path / "previous" / "b.png").mkdir(parents=True)
        with pytest.raises(output.OutputError, match=r"/previous/b.png must be a file or free, not a folder: "):
            output.claim(tmp_path, files=self.FILES)
        assert (tmp_path / "a.json").read_text() == "new"

    def test_unwritable(self, tmp_path, monkeypatch):
        def refuse(*arguments):
            raise PermissionError(errno.EACCES, "Permission denied")

        self.fill(tmp_path, "a.json", text="new")
        with monkeypatch.context() as patch:
            patch.setattr(type(tmp_path), "replace", refuse)
            with pytest.raises(output.OutputError, match=r"/previous/a.json cannot be written: permission denied; "):
                output.claim(tmp_path, files=self.FILES)
        output.release()
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(output.OutputError, match=r"/.run.lock cannot be written: permission denied; "):
            output._lock(tmp_path)

    def test_two_runs(self, tmp_path):
        """A folder belongs to one run, even if its process uses different paths to it; other processes are
        rejected."""
        output.claim(tmp_path / "new", files=self.FILES)
        output.claim(tmp_path / "new" / ".." / "new", files=self.FILES)
        assert (tmp_path / "new" / ".run.lock").read_text() == f"{os.getpid()}\n"
        held = dict(output._claimed)
        output._claimed.clear()
        with pytest.raises(output.OutputError, match=rf"/new must have no run .* that of process {os.getpid()}: "):
            output.claim(tmp_path / "new", files=self.FILES)
        output._claimed.update(held)
        output.release()
        output.claim(tmp_path / "new", files=self.FILES)

    def test_without_locks(self, tmp_path, monkeypatch):
        """If the file system has no locks, concurrent runs are not detected, but old results are still moved."""
        def fail(*arguments):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", fail)
        self.fill(tmp_path, "a.json", text="new")
        output.claim(tmp_path, files=self.FILES)
        assert (tmp_path / "previous" / "a.json").read_text() == "new"

    def test_lock_file_that_was_removed(self, tmp_path, monkeypatch):
        """If the previous run removes its lock file on exit, a new lock file is created."""
        lock, calls = fcntl.flock, []

        def remove(descriptor, operation):
            if not calls:
                (tmp_path / ".run.lock").unlink()
            calls.append(operation)
            lock(descriptor, operation)

        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", remove)
            output._lock(tmp_path)
        assert len(calls) == 2
        assert (tmp_path / ".run.lock").exists()


def test_all_json_is_legal():
    """JSON is written by one function, unless it contains only numbers that the program itself generates."""
    writers = set()
    for path in (ROOT / "host").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.dump", "json.dumps"):
                writers.add(path.relative_to(ROOT / "host").as_posix())
    # JSON is also used for digests of configurations and networks, error texts, messages between processes, and
    # command options.
    assert writers == {"output.py", "checkpoints/archive.py", "make/commands.py", "features/compute/memory/plan.py",
                     "features/streaming/edits.py", "features/streaming/plan.py",
                     "sockets/format.py", "labs/sweep/execution.py", "labs/sweep/jobs.py",
                     "labs/sweep/worker.py", "pytorch/speed.py", "training/checkpoint.py"}
