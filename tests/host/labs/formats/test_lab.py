"""Errors of formats: host/labs/formats."""

import numpy as np
import pytest

from host.gradients.files import Sample, save
from host.labs.formats import measures
from host.labs.formats.lab import formats_lab
from host.labs.formats.measures import Gradients, coding, coding_of, sum_qsnrs
from tests.present import needs


def sample(values, **fields):
    values = np.asarray(values, np.float32)
    return Sample(**{"source": "module0", "parameter": "a", "shape": values.shape, "step": 1, "rank": 0, "ranks": 2,
                     "runs": [(0, len(values))], "values": values, **fields})


def test_selection(monkeypatch):
    """Zeros, infinities and gradients of only some ranks are left out, and so are gradients in excess."""
    ranks = [sample([1, 2, rank], rank=rank, parameter=name) for name in "ab" for rank in range(2)]
    gradients = Gradients([*ranks, sample([0.0], parameter="c"), sample([np.inf], parameter="d"),
                           *(sample([5 - 10 * rank], rank=rank, parameter="e") for rank in range(2))], scale=8)
    assert (gradients.not_finite, gradients.left_out, gradients.ranks) == (1, 0, 2)
    assert [each.key for each in gradients.samples] == [each.key for each in ranks] + [
        ("module0", "e", 1, rank) for rank in range(2)]
    assert [each.parameter for each in gradients.addends] == ["a", "b"]
    rows, starts = gradients.rows()
    assert rows.shape == (2, 64)
    assert starts == [0, 32]
    assert rows[1, :4].tolist() == [4, 8, 4, 0]
    monkeypatch.setattr(measures, "MAX_ELEMENTS", 6)
    assert [each.parameter for each in Gradients(ranks).samples] == ["a", "a"]
    assert Gradients(ranks).left_out == 2
    assert Gradients([]).samples == []


def test_coding():
    """Powers, errors and zeros of each part belong to its elements."""
    needs("mx")
    values = np.float32([*[1, 1.25, 0, 0.01] * 8, *[2.0 ** -40, 3] * 16])
    measured = coding("mx6", values, [0, 32])
    exact = values.astype(np.float64)
    assert measured.qsnr[0] == pytest.approx(10 * np.log10((exact[:32] ** 2).sum() / (8 * 0.01 ** 2)), rel=1e-6)
    assert measured.qsnr[1] == pytest.approx(10 * np.log10(9 / 2.0 ** -80), rel=1e-6)
    assert measured.zeros.tolist() == [1 / 3, 0.5]
    assert measured.lost == 24 / 56


def test_same_power():
    """Gaussian numbers have the power of each gradient; a format without blocks has similar errors for both."""
    needs("bf16")
    generator = np.random.default_rng(3)
    gradients = Gradients([sample(10.0 ** -power * generator.standard_normal(1000), parameter=str(power))
                           for power in range(5)])
    recorded, same = coding_of("bf16", gradients)
    assert np.abs(recorded.qsnr - same.qsnr).max() < 1
    assert np.ptp(same.qsnr) < 1


def test_sums():
    """Sums without rounding have no errors; sums in binary32 have a known error."""
    rows = np.arange(256, dtype=np.float32).reshape(4, 64)
    assert sum_qsnrs("raw", rows, [0, 32]).tolist() == [np.inf, np.inf]
    noise = np.random.default_rng(4).standard_normal((2, 4096)).astype(np.float32)
    assert sum_qsnrs("raw", noise)[0] == pytest.approx(151, abs=2)


def test_options(tmp_path, capsys):
    needs("mx")
    save(tmp_path / "a.npz", [sample([1, 2 ** -20], rank=rank, parameter=name) for name in ("a", "b\u00e4")
                              for rank in range(2)])
    formats_lab(gradients=tmp_path / "a.npz", formats="mx6,raw", parameters="mx6")
    printed = capsys.readouterr().out
    assert f"{tmp_path}/a.npz: 4 gradients of single ranks, and 2 sums of 2 ranks" in printed
    assert "bä" in printed
    assert "50.0%" in printed
    for options, text in (({"formats": "mx6,mx7"}, "^Format must be one of .*, not 'mx7': did you mean "),
                          ({"parameters": "raw"}, "^Format of --parameters must be one of .*, not 'raw'$"),
                          ({"scale": 0.0}, "^Scale must be between 1e-09 and 1,000,000,000.0, not 0.0$")):
        with pytest.raises(ValueError, match=text):
            formats_lab(gradients=tmp_path / "a.npz", **options)
