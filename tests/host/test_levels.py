"""Reproducibility levels in reports and on their pages."""

from host.levels import Level, described_levels, levels_of_ring
from tests.present import needs


def test_levels():
    assert levels_of_ring("raw") == ["run to run", "any processor", "any cut"]
    assert levels_of_ring("raw", cut=False) == ["run to run", "any processor"]
    assert described_levels(levels_of_ring("raw")) == (
        "Sums have the same bits: run to run, any processor, any cut; not for any order and topology, any number of "
        "nodes.")
    assert described_levels(list(Level)) == (
        "Sums have the same bits: run to run, any processor, any cut, any order and topology, any number of nodes.")


def test_sums_of_integers():
    needs("reproducible", what="A format of integers")
    assert levels_of_ring("sum32") == ["run to run", "any processor", "any cut", "any order and topology"]
    assert levels_of_ring("sum16", cut=False)[-1] == Level.ANY_ORDER
