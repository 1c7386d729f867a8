"""Tables of the documentation, computed with only a few examples: tests/host/training/figures.py."""

import pytest

from tests.docs.test_tables import faults
from tests.host.training import figures


@pytest.mark.parametrize(("name", "rows"), [("optimizers", 7), ("int16", 6), ("density", 1), ("settings", 8)])
def test_tables(name, rows, few, monkeypatch, capsys):
    """Each table has a heading and a row for each setting or seed, and all rows have the same number of cells."""
    monkeypatch.setattr(figures, "digits", lambda: few)
    kept = figures.sparsifier.Threshold, figures.Reference.sparsify, figures.NodeOperations.sparsify
    figures.TABLES[name](1)
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 2 + rows
    assert faults(said) == []
    assert (figures.sparsifier.Threshold, figures.Reference.sparsify, figures.NodeOperations.sparsify) == kept
