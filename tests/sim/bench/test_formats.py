"""Measurement of the time of codec kernels: sim/bench/formats.py."""

from sim.arithmetic import formats
from sim.bench import formats as bench
from sim.golden.codecs import CODECS


def test_command(monkeypatch, capsys):
    """The table has a line for each codec. Codecs that are only for weights have no time for a hop."""
    measured = bench.measure
    monkeypatch.setattr(bench, "measure", lambda name: measured(name, length=5000))
    bench.main()
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split() == ["ns", "per", "element", "encode", "decode", "hop", "copy"]
    assert [line.split()[0] for line in lines] == list(formats.names())
    for line in lines:
        name, *times = line.split()
        assert len(times) == 3 + CODECS[name].gradients
        assert all(0 < float(value) < 1000 for value in times)


def test_rows(monkeypatch):
    times = {"encode": 2.0, "decode": 1.0, "hop": 4.0, "copy": 0.5}
    monkeypatch.setattr(bench, "measure", lambda name: dict(times))
    rows = bench.rows()
    assert [(row["name"], row["measured"], row["ratio"]) for row in rows] == len(formats.names()) * [
        ("arithmetic.encode", 2, 4), ("arithmetic.decode", 1, 2), ("arithmetic.hop", 4, 8)]
    assert {row["unit"] for row in rows} == {"ns/element"}
