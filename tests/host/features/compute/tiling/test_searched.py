"""Factors from a search take no more cycles than the default factors, and are kept for later runs."""


import numpy as np
import pytest

from host.features.compute import lists
from host.features.compute.instructions import Array, best_factors
from host.features.compute.tiling import searched
from host.features.compute.tiling.searched import SearchedFactors
from host.models.layer_shapes import layers_of
from sim import json_files
from sim.verilated.native import Arithmetic
from tests.host.rings import CONFIGS

NODE = CONFIGS["centroid"]
ARRAY = Array(rows=NODE.compute.rows, lanes=NODE.lanes, operands=NODE.compute.operands)


@pytest.fixture
def short(monkeypatch):
    """Function that creates tiling factors with a search budget of only six evaluations, to keep tests short."""
    monkeypatch.setattr(searched, "BUDGET", 6)

    def factors(path):
        return SearchedFactors(NODE, path, arithmetic=Arithmetic.GATEWARE)

    return factors


def test_lists(short, tmp_path, monkeypatch):
    """Factors found by a search are kept. When a network's lists are compiled, they are used instead of the default
    factors unless these are better."""
    path = tmp_path / "tiling" / "factors.json"
    options = {"array": ARRAY, "examples": 6, "words": NODE.compute.activations}
    layers = layers_of((8, 12, 10))
    with short(path) as factors:
        first = lists.compile_lists(layers, **options, factors=factors)
        assert factors.line.startswith(f"tiling: searched, {len(factors.found)} products in ")
    kept = json_files.read_sealed(path)
    assert kept.keys() == factors.found.keys()
    assert len(kept) == 7
    assert all(0 < entry["cycles"] <= entry["default"] and entry["evaluations"] == 6 for entry in kept.values())
    monkeypatch.setattr(SearchedFactors, "_search", None)  # prevents further searches
    with short(path) as factors:
        again = lists.compile_lists(layers, **options, factors=factors)
    assert np.array_equal(first.words, again.words)


def test_worse_default(short, tmp_path, monkeypatch):
    """If the default factors use panels of one term, the search finds factors that take fewer cycles."""
    monkeypatch.setattr(searched, "BUDGET", 40)
    worse = {**best_factors(ARRAY, (6, 8, 12), transpose_a=True), "rounds": 0, "order": 2}
    monkeypatch.setattr(searched, "best_factors", lambda *arguments, **options: worse)
    with short(tmp_path / "factors.json") as factors:
        chosen = factors(ARRAY, (6, 8, 12), transpose_a=True)
        (tiling,) = factors.found.values()
    assert tiling.cycles < tiling.default
    assert dict(chosen) == tiling.factors != worse


def test_no_room(short, tmp_path):
    """A product that does not fit on the node gets the default factors, which are not written to the file."""
    path = tmp_path / "factors.json"
    with short(path) as factors:
        assert dict(factors(ARRAY, (64, 64, 64))) == dict(best_factors(ARRAY, (64, 64, 64)))
    assert not factors.found
    assert not path.exists()
