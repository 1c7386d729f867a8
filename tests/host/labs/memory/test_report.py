"""Results of `gradring lab memory`: partial results, output and failures."""

import json

import pytest
from typer.testing import CliRunner

from host.cli import app
from host.labs.memory import lab as memory
from host.labs.memory.lab import Parts

#: Results of a training step that was run on a simulated node.
NODE = {"chain": "8-4-3", "share": 0.5, "rate": 0.125, "kind": "swap", "policies": ["swap", "keep"], "cycles": 1030,
        "timeline": 1000, "budget": 100, "peak": 90, "far_words": 64, "planned": 64, "multiplications": 7,
        "same": True}


@pytest.fixture
def few(monkeypatch):
    """Use only a few small programs of each kind."""
    for name, value in (("_WIDTHS", ((8, 4, 3),)), ("INJECTED", 3), ("PASSES", 5), ("_CHAINS", 3), ("_EXAMPLES", 4)):
        monkeypatch.setattr(memory, name, value)
    monkeypatch.setattr(memory, "EXHAUSTIVE", 5)
    monkeypatch.setattr(memory, "PARTS", {**{name: memory.PARTS[name] for name in (
        "programs", "checks", "bits", "far", "chains 0")}, "nodes": lambda: [{**NODE, "factor": 1.25}],
        "text nodes": lambda: [{**NODE, "chain": "text", "factor": 1.375}]})


def test_command(few, tmp_path):
    """The output has four tables and a line for each other result; a second run reuses the stored parts."""
    runs = [CliRunner().invoke(app, ["lab", "memory", "--output", str(tmp_path)]) for _ in range(2)]
    for run in runs:
        assert run.exit_code == 0, run.output
        lines = [" ".join(line.split()) for line in run.output.splitlines()]
        for words in ("27,024 13,888 (-48.6%)", "9,344 (-65.4%)", "swap sk", "1.250", "1.375", "1.0300",
                      "28,560 14,400 (-49.6%)", "7,808 (-72.7%)", "1.105", "1.182", "1.069"):
            assert any(words in line for line in lines), words
        assert "overlaps: of 3 put into plans, 3 found by lifetimes and 3 by owners of words; 0 alarms" in run.output
        assert run.output.count("16 of 16 lengths with the host's bits") == 4
        assert "modelled" in run.output
    kept = json.loads((tmp_path / "memory.json").read_text())
    assert list(kept["parts"]) == list(memory.PARTS)
    assert not list(Parts(tmp_path / "memory.json").complete())


def test_parts_are_kept(monkeypatch, tmp_path):
    """A run resumes after the last part it has written, or starts over if sources have changed or a file is
    invalid."""
    calls = []

    def part(name):
        return lambda: calls.append(name) or [name]

    def broken():
        raise KeyboardInterrupt

    path = tmp_path / "memory.json"
    monkeypatch.setattr(memory, "PARTS", {"one": part("one"), "two": broken})
    with pytest.raises(KeyboardInterrupt):
        list(Parts(path).complete())
    monkeypatch.setattr(memory, "PARTS", {"one": part("one"), "two": part("two")})
    results = Parts(path)
    assert list(results.complete()) == ["two"]
    assert (calls, results.parts) == (["one", "two"], {"one": ["one"], "two": ["two"]})
    monkeypatch.setattr(memory, "_digest", lambda: "other")
    assert not Parts(path).parts
    path.write_text("{")
    assert not Parts(path).parts


@pytest.mark.parametrize(("change", "failure"), [
    (lambda parts: parts["programs"][0].update(wrong=["strict"]), "a plan with an overlap"),
    (lambda parts: parts["programs"][0]["words"].update(search=10), "a search above the words that are alive"),
    (lambda parts: parts["programs"][0]["words"].update(shared=8193), "a text program above 8,192 words"),
    (lambda parts: parts["programs"][1]["words"].update(strict=12),
     "lists of text of which the strict rule saves too little"),
    (lambda parts: parts["programs"][2]["words"].update(shared=10), "lists of text that share less than is alive"),
    (lambda parts: parts["checks"].update(dead_reads=99), "an overlap that was not found"),
    (lambda parts: parts["checks"].update(alarms=1), "a false alarm"),
    (lambda parts: parts["bits"][0].update(same=15), "other bits than the host's"),
    (lambda parts: parts["far"][0]["mixed"].update(cycles=12), "a mixed plan that is slower than another"),
    (lambda parts: parts["far"][0]["swap"].update(peak=101), "a plan above its budget"),
    (lambda parts: parts["nodes"][0].update(same=False), "a step on a node with other bits than the host's"),
    (lambda parts: parts["text nodes"][0].update(same=False), "a step on a node with other bits than the host's"),
    (lambda parts: parts["text nodes"].append({**NODE, "chain": "text", "kind": "mixed", "cycles": 1030}),
     "a mixed step on a node that is slower than another"),
    *((lambda parts, change=change: parts["nodes"][0].update(change), "a step on a node that is not its plan")
      for change in ({"far_words": 63}, {"peak": 101}, {"cycles": 1031}, {"cycles": 969})),
    (lambda parts: parts["chains 0"].extend([1.01] * 5),
     "greedy plans that are not those of an exhaustive search"),
    (lambda parts: parts["chains 0"].append(1.07), "greedy plans that are not those of an exhaustive search"),
], ids=lambda case: case if isinstance(case, str) else "")
def test_failures(tmp_path, change, failure):
    """Every property that does not hold is reported as a failure."""
    results = Parts(tmp_path / "memory.json")
    run = {"cycles": 11, "peak": 100}
    results.parts = {
        "programs": [{"program": name, "wrong": [], "naive": 20, "live": 9,
                      "words": {"search": 9, "shared": 9, "strict": 11}} for name in (
            "text, normals scaled again", "lists of text", "lists of text, normals scaled again")],
        "checks": {"injected": 100, "overlaps": 100, "dead_reads": 100, "alarms": 0},
        "bits": [{"lengths": 16, "same": 16}],
        "far": [{"budget": 100, "swap": dict(run), "recompute": None, "mixed": dict(run)}],
        "nodes": [dict(NODE)], "text nodes": [{**NODE, "chain": "text", "cycles": 1000}],
        "chains 0": [1.0] * 95 + [1.06] * 5}
    assert results.failures() == []
    change(results.parts)
    assert results.failures() == [failure]


def test_sources():
    """Stored results are valid only for the sources with which they were computed: planner, lists and models."""
    names = {"/".join(path.parts[-2:]) for path in memory._sources()}
    assert {"memory/lab.py", "memory/plan.py", "memory/chain.py", "compute/lists.py", "models/layers.py",
            "far/steps.py"} <= names
