"""Helpers for tests of the cache, which create and list its entries."""

import os
import time

from sim.verilated import cache, cache_folder


def entry(letter="a", kind="verilog"):
    """Path of a cache entry, which has a digest in its name."""
    return cache_folder.folder(kind) / f"{letter}-{letter * 24}"


def write(fresh):
    """A minimal build, which writes a single file."""
    (fresh / "product").write_text("product")


def make(kind="verilog", letter="a", size=0, age=0.0):
    """Create a cache entry of ``size`` bytes, last used ``age`` seconds ago by a process that has ended since."""
    path = entry(letter, kind)
    cache_folder.make(path.parent)
    path.mkdir(mode=0o755)
    (path / "product").write_bytes(bytes(size))
    cache._seal(path)
    os.utime(path, (time.time() - age,) * 2)
    return path


def left(folder):
    """Names in a folder for one kind of cache entry, other than its lock and the records of its users."""
    return [path.name for path in folder.iterdir() if path.name not in (".lock", ".users")]
