"""Tests of the ``gradring cache`` command."""

import functools
import os
import time

import pytest

from sim.verilated import cache, cache_folder


@pytest.fixture
def run(program, monkeypatch, tmp_path):
    """Run ``gradring cache`` with an empty cache; return exit code, standard output and standard error."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(cache_folder.LIMIT, raising=False)
    return functools.partial(program, "cache")


def make(kind, letter, days):
    path = cache_folder.folder(kind) / f"{letter}-{letter * 24}"
    cache_folder.make(path.parent)
    path.mkdir()
    (path / "product").write_bytes(bytes(1_000_000))
    cache._seal(path)
    os.utime(path, (time.time() - days * 86400,) * 2)
    return path


def test_where_there_is_none(run, succeed, tmp_path):
    out = succeed()
    assert f"folder: {tmp_path / 'cache'} (environment variable GRADRING_CACHE)" in out
    for command in ("prune", "clear"):
        assert run(command) == (0, "entries removed: 0, 0 bytes\n", "")
    assert not (tmp_path / "cache").exists()


def test_shown(succeed, monkeypatch):
    make("verilog", "a", 3)
    make("verilog", "b", 40)
    make("placement", "c", 0)
    monkeypatch.setenv(cache_folder.LIMIT, "500MB")
    out = succeed()
    rows = {cells[0]: cells[1:] for line in out.splitlines()
            if len(cells := [cell.strip() for cell in line.split("│")[1:-1]]) == 5}
    assert rows["verilog"] == ["Verilog of components", "2", "2.0 MB", "3 days ago"]
    assert rows["placement"] == ["synthesis and placements", "1", "1.0 MB", "now"]
    assert rows["all"] == ["", "3", "3.0 MB", ""]
    assert "limit: 500.0 MB (GRADRING_CACHE_LIMIT)" in out


def test_pruned_by_size_and_by_age(run):
    """Entries are pruned by size or age; without options, only by the cache's own limit."""
    old, older, young = make("verilog", "a", 35), make("placement", "b", 40), make("verilated", "c", 1)
    assert run("prune")[1] == "entries removed: 0, 0 bytes\n"
    assert run("prune", "--limit", "2.5MB")[1].startswith("entries removed: 1, 1.0 MB")
    assert not older.exists()
    assert run("prune", "--older-than", "30d")[1].startswith("entries removed: 1, 1.0 MB")
    assert not old.exists()
    assert run("prune", "--older-than", "30d")[1].startswith("entries removed: 0, ")
    assert young.exists()


def test_cleared(succeed):
    """``gradring cache clear`` keeps and counts entries that a running process is using."""
    make("verilog", "a", 1)
    used = make("verilog", "b", 1)
    cache.cached(used, lambda fresh: pytest.fail("built again"))
    out = succeed("clear")
    assert out.startswith("entries removed: 1, 1.0 MB\nentries in use, and kept: 1, 1.0 MB\n")
    assert cache.complete(used)


@pytest.mark.parametrize(("arguments", "message"), [
    (["prune", "--limit", "5 apples"], "Size must be a number of bytes such as 5GB or 500MB, not '5 apples'"),
    (["prune", "--older-than", "30"],
     "Age must be a number with m, h, d or w for minutes, hours, days or weeks, as in 30d, not '30'"),
])
def test_refused(run, arguments, message):
    assert run(*arguments) == (1, "", f"error: {message}\n")
