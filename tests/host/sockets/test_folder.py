"""Folders for sockets: where they are created, and which of them are removed."""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from host.sockets import folder as module
from host.sockets.folder import socket_folder

ROOT = Path(__file__).parents[3]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty temporary folder for one test. Socket folders cannot be created anywhere else."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short, because paths of sockets contain it
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(module, "_SHORT", ())
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


def killed(temporary):
    """Create the folder of a process that was killed, with its socket."""
    code = ("import os, signal, socket\n"
            "from host.sockets.folder import socket_folder\n"
            "with socket_folder() as folder:\n"
            "    socket.socket(socket.AF_UNIX).bind(str(folder / 'ring'))\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    path, = [entry for entry in temporary.iterdir() if entry.name.startswith(module._PREFIX)]
    assert (path / "ring").is_socket()
    return path


def test_abandoned(temporary):
    """The next process removes the folder of a killed process. It keeps links, folders of running processes or other
    users, folders without a lock, and folders with other files."""
    abandoned = killed(temporary)
    other = temporary / "other"
    other.mkdir()
    (other / "lock").touch()
    (temporary / f"{module._PREFIX}link").symlink_to(other)
    unlocked, full, linked = (temporary / f"{module._PREFIX}{name}" for name in ("unlocked", "full", "linked"))
    for path in (unlocked, full, linked):
        path.mkdir()
    for name in ("lock", "ring", "work"):
        (full / name).touch()
    (linked / "lock").symlink_to(other / "lock")
    with socket_folder() as first:
        assert not abandoned.exists()
        (first / "ring").touch()
        with socket_folder() as second:
            assert first.exists()
            assert second != first
            assert second.stat().st_mode & 0o777 == 0o700
        assert not second.exists()
    assert not first.exists()
    assert (other / "lock").exists()
    assert all((full / name).exists() for name in ("lock", "ring", "work"))
    assert unlocked.exists()
    assert (linked / "lock").is_symlink()


def test_another_users(temporary, monkeypatch):
    abandoned = killed(temporary)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with socket_folder():
        assert abandoned.exists()


def test_locked(temporary):
    """A folder is in use while its lock is held, even if the process that created it has ended."""
    abandoned = killed(temporary)
    with (abandoned / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket_folder():
            assert abandoned.exists()
    with socket_folder():
        assert not abandoned.exists()


@pytest.mark.parametrize("length", [85, 200])
def test_long(temporary, monkeypatch, length):
    """If the path of the temporary folder is too long, a shorter one is used, or the error mentions TMPDIR."""
    path = Path(str(temporary / "x").ljust(length, "x"))
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    with pytest.raises(OSError, match=r"Temporary folder must be one that can be written to, with a path of at most "
                                      rf"\d+ bytes, for a socket, not {path}: set TMPDIR to another one$"):
        socket_folder().__enter__()
    monkeypatch.setattr(module, "_SHORT", ("/nothing", str(temporary)))
    with socket_folder() as folder, socket.socket(socket.AF_UNIX) as connection:
        connection.bind(str(folder / "ring"))
        assert folder.parent == temporary
