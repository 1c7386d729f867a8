"""Measurement of the time of compiled collectives: sim/bench/collectives.py."""

from sim.bench import collectives
from sim.golden.codecs import CODECS


def test_command(capsys):
    collectives.main(length=3000, golden_length=1000)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split() == ["ns", "per", "element", "compiled", "golden"]
    assert [line.split()[0] for line in lines] == [name for name in collectives.CODEC_NAMES if name in CODECS]
    for line in lines:
        assert all(float(value) > 0 for value in line.split()[1:])
