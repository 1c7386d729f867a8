"""Figures on docs/compression/errors.md, and the lines on recorded gradients on docs/reproducible.md."""

from pathlib import Path

import numpy as np
import pytest

from host.labs.formats import lab, page
from host.labs.formats.measures import CODED, SUMMED, coding_of
from tests.present import needs
from tests.recorded import MODELS, gradients

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "compression/errors.md").read_text()
TEXT = " ".join(PAGE.split())


@pytest.fixture(autouse=True)
def formats():
    needs("bf16", "mx", "nvfp4", "reproducible")


def test_tables():
    """The page ends with the lines that the command prints."""
    assert PAGE.endswith("\n".join(page.page()) + "\n")


def test_reproducible_sums():
    assert "\n".join(page.reproducible_lines()) in (DOCS / "reproducible.md").read_text()


def test_nvfp4():
    """Only the scale of gradients makes nvfp4 lose most of them."""
    row = lab.coding_rows(["nvfp4"], gradients("text"))[0]
    assert (f"{100 * row.zeros:.1f} % of the elements become zero, and the median is {row.median:.1f} dB instead of "
            f"{row.gaussian:.1f} dB") in TEXT
    assert f"Gaussian numbers of the same power have {row.same_power:.1f} dB" in TEXT
    medians = {model: np.median(coding_of("nvfp4", gradients(model, scale=1024))[0].qsnr) for model in MODELS}
    assert f"the medians are {medians['digits']:.1f} dB for digits and {medians['text']:.1f} dB for text" in TEXT


def test_other_formats():
    rows = [row for model in MODELS for row in lab.coding_rows(
        [name for name in CODED if name != "nvfp4"], gradients(model))]
    medians, tenths = ([getattr(row, name) - row.gaussian for row in rows] for name in ("median", "lowest_tenth"))
    assert f"gradients are {-min(medians):.1f} dB below to {max(medians):.1f} dB above Gaussian numbers" in TEXT
    assert f"A tenth of the gradients are {-max(tenths):.1f} to {-min(tenths):.1f} dB below, or more" in TEXT
    factors = [row.zeros / row.zeros_gaussian for row in rows if row.zeros_gaussian > 1e-3]
    assert f"up to {max(factors):.1f} times as many elements of the digits model become zero" in TEXT


def test_sums():
    rows = [row for model in MODELS for row in lab.sum_rows(
        [name for name in SUMMED if name != "nvfp4"], gradients(model))]
    medians = [row.median - row.gaussian for row in rows]
    lowest = min(rows, key=lambda row: row.lowest_tenth - row.gaussian)
    assert f"are {-min(medians):.1f} dB below to {max(medians):.1f} dB above sums of Gaussian numbers" in TEXT
    assert (f"lowest tenth is up to {lowest.gaussian - lowest.lowest_tenth:.1f} dB below, with `{lowest.format}`"
            in TEXT)


def test_sizes():
    sizes = sum(path.stat().st_size for path in lab.RECORDED.values())
    assert f"of {sizes / 1000:.0f} kB" in TEXT
    assert {model: (len(gradients(model).samples), len(gradients(model).addends)) for model in MODELS} == {
        "digits": (48, 12), "text": (300, 75)}
