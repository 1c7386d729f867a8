"""Reproducibility levels in reports and on their pages."""

from host.levels import Level, described_levels, levels_of_ring


def test_levels():
    assert levels_of_ring() == ["run to run", "any processor", "any cut"]
    assert levels_of_ring(cut=False) == ["run to run", "any processor"]
    assert described_levels(levels_of_ring()) == (
        "Sums have the same bits: run to run, any processor, any cut; not for any order and topology, any number of "
        "nodes.")
    assert described_levels(list(Level)) == (
        "Sums have the same bits: run to run, any processor, any cut, any order and topology, any number of nodes.")
