"""Measurement of the time of the compiled optimizer: sim/bench/optimizers.py."""

from sim.bench import optimizers as bench


def test_command(monkeypatch, capsys):
    """The table has a line for each rule; SGD has no time for packed state."""
    measured = bench.measure
    monkeypatch.setattr(bench, "measure", lambda name: measured(name, length=5000))
    bench.main()
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split() == ["ns", "per", "element", "binary32", "bfloat16", "copy"]
    assert [line.split()[0] for line in lines] == list(bench.RULES)
    for line in lines:
        name, *times = line.split()
        assert len(times) == 3 - (name == "sgd")
        assert all(0 < float(value) < 1000 for value in times)


def test_rows(monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda name: {"binary32": 2.0, "bfloat16": 1.0, "copy": 0.5})
    rows = bench.rows()
    assert [(row["name"], row["measured"], row["ratio"]) for row in rows] == len(bench.RULES) * [
        ("arithmetic.update", 2, 4), ("arithmetic.update", 1, 2)]
    assert {row["unit"] for row in rows} == {"ns/element"}
    assert len({row["config"] for row in rows}) == 2 * len(bench.RULES)
