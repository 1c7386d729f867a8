"""The tables of figures on docs/reproducible.md and docs/reproducible/comparison.md."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.ring.header import OVERHEAD_WORDS
from host.labs.bench import sum_formats
from host.labs.bench.sum_formats import Cost
from sim.bench import reproducible_errors
from sim.golden import ring
from sim.golden.codecs import GRADIENT_CODECS
from tests.present import needs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reproducible.md").read_text()
COMPARISON = (DOCS / "reproducible/comparison.md").read_text()


@pytest.mark.parametrize("distribution", reproducible_errors.DISTRIBUTIONS)
def test_errors(distribution, monkeypatch):
    """The page shows the lines that the command prints for two addends."""
    needs("bf16", "mx")
    monkeypatch.setattr(reproducible_errors, "COUNTS", (2,))
    monkeypatch.setattr(reproducible_errors, "DISTRIBUTIONS", {
        distribution: reproducible_errors.DISTRIBUTIONS[distribution]})
    assert "\n".join(reproducible_errors.table()).split("\n")[2] in PAGE
    assert "\n".join(itertools.islice(reproducible_errors.table(), 2)) in PAGE


def payload(name):
    """Payload words that one node sends in the page's all-reduce, not counting headers and CRCs."""
    values = ring.bits(sum_formats.gradients(sum_formats.NODES, sum_formats.LENGTH))
    codec, segment = GRADIENT_CODECS[name], NodeConfig().segment
    traffic = ring.all_reduce(values, gradient_codec=codec, residuals=np.zeros_like(values), segment=segment,
                              lanes=NodeConfig().lanes)[1]
    # Exponents precede their data by one segment in one phase of the all-reduce, and by two segments in the other.
    rounds = 2 * sum_formats.LENGTH // sum_formats.NODES // segment + (3 if codec.agreed else 0)
    words = int(max(traffic.words))
    return words, words - OVERHEAD_WORDS * (sum_formats.NODES - 1) * rounds


def test_formats():
    """The page shows the table that the command prints, with the golden model's word counts."""
    needs("mx", "reproducible")
    rows = re.findall(r"^\| `(\w+)` \| [\d,]+ \| [\d.]+ \| ([\d,]+) \| [\d.]+ \|$", PAGE, re.MULTILINE)
    costs = [(name, Cost(*payload(name), int(cycles.replace(",", "")))) for name, cycles in rows]
    assert [name for name, _ in costs] == list(sum_formats.FORMATS)
    table = sum_formats.table(costs)
    lines = [table.headings, *([f"`{name}`", *figures] for name, *figures in table.cells)]
    heading, *rows = (f"| {' | '.join(cells)} |\n" for cells in lines)
    assert f"{heading}|---|---:|---:|---:|---:|\n{''.join(rows)}" in PAGE


def test_comparison():
    """The comparison of formats shows the same errors and word counts as the page."""
    needs("mx", "bf16", "reproducible")
    names = PAGE[PAGE.index("| numbers | addends |"):].split("\n")[0].split(" | ")
    of = dict(zip(names, re.search(r"^\| Gaussian \| 4 \| .*$", PAGE, re.MULTILINE)[0].split(" | "), strict=True))
    columns = {"raw": "raw", "mx9": "mx9", "sum32": "width 32", "sum16": "width 16"}
    rows = re.findall(r"^\| ring, `(\w+)` \| .* \| (\S+) \| (\S+) words?\b", COMPARISON, re.MULTILINE)
    assert [name for name, *_ in rows] == list(sum_formats.FORMATS)
    for name, error, words in rows:
        assert float(error) == float(of[columns[name]])
        assert float(words) == round(payload(name)[1] / payload("raw")[1], 2)
