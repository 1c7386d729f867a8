"""Command that measures the errors and the monotonicity of exp and log: its output, and the failures that it
detects."""

import pytest

from sim.bench import exponential as bench
from sim.golden import exponential


@pytest.mark.parametrize("name", ["exp", "log"])
def test_within_the_bound(name):
    result = bench.measure(name, most=1_000_000)
    assert result["count"] >= 1_000_000
    assert 0.5 < result["worst"] < bench.BOUND
    assert result["rounded"] > 0.9
    assert (result["wrong"], result["others"]) == (0, 0)


def test_command(monkeypatch, capsys):
    monkeypatch.setattr(bench, "MOST", 50_000)
    monkeypatch.setattr(bench.measure, "__kwdefaults__", {"most": 50_000})
    assert bench.main() == 0
    exp, log = capsys.readouterr().out.splitlines()
    assert exp.startswith("exp: 50,")
    assert log.endswith("0 pairs in the wrong order, 0 results of kernels that differ")
    # The first coefficient with an error of one unit in the last place changes some bits; with the value 3/4, errors
    # are large.
    monkeypatch.setattr(exponential, "EXP", (exponential.EXP[0] + 1, *exponential.EXP[1:]))
    assert bench.main() == 1
    assert "0 results of kernels that differ" not in capsys.readouterr().out.splitlines()[0]
    monkeypatch.setattr(exponential, "EXP", (0x3F40_0000, *exponential.EXP[1:]))
    assert bench.measure("exp")["worst"] > bench.BOUND
