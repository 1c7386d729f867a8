"""The table of errors on docs/reproducible.md."""

import itertools
from pathlib import Path

import pytest

from sim.bench import reproducible_errors
from tests.present import needs

PAGE = (Path(__file__).parents[2] / "docs/reproducible.md").read_text()


@pytest.mark.parametrize("distribution", reproducible_errors.DISTRIBUTIONS)
def test_errors(distribution, monkeypatch):
    """The page has the lines that the command prints; here those of two addends."""
    needs("bf16", "mx")
    monkeypatch.setattr(reproducible_errors, "COUNTS", (2,))
    monkeypatch.setattr(reproducible_errors, "DISTRIBUTIONS", {
        distribution: reproducible_errors.DISTRIBUTIONS[distribution]})
    assert "\n".join(reproducible_errors.table()).split("\n")[2] in PAGE
    assert "\n".join(itertools.islice(reproducible_errors.table(), 2)) in PAGE
