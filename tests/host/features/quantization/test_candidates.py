
import pytest

from host.features.quantization.command import SchemeOptions
from host.features.quantization.experiment import candidates
from host.features.quantization.schemes import Extrema, Rounding, Scheme
from tests.refusals import refuses


class TestCandidates:
    def test_are_all_schemes_side_by_side(self):
        entries = candidates(3)
        assert len(entries) == len({(entry.network, entry.label, entry.bits, entry.scale, entry.config.rounding)
                                    for entry in entries}) == 2 * 2 * 5 * 2 + 2 * 4
        assert {entry.label for entry in entries} == {
            "symmetric", "float-offset", "iaq-min", "iaq-max", "iaq-min, aligned"}
        assert {entry.config.bits for entry in entries} == {8, 4, (8, 8, 4)}
        assert {entry.unit for entry in entries} == {
            "quantization.integer_offset", "quantization.integer_offset-bits=4",
            "quantization.float_offset", "quantization.float_offset-bits=4"}

    def test_by_name(self):
        made = SchemeOptions(scheme="iaq-max", rounding="truncate", extrema="aligned", calibration="percentile",
                             bits=4, per_output=True, percentile=99.0).config()
        assert (made.scheme, made.rounding, made.extrema) == (Scheme.IAQ_MAX, Rounding.TRUNCATE, Extrema.ALIGNED)

    @pytest.mark.parametrize(("changes", "message"), [
        ({"scheme": "best"}, "Scheme must be one of symmetric, float-offset, iaq-min, iaq-max, not 'best'"),
        ({"rounding": "up"}, "Rounding must be one of nearest, truncate, not 'up'"),
        ({"extrema": "few"}, "Extrema must be one of weights, zero, aligned, not 'few'"),
        ({"calibration": "max"}, "Calibration must be one of minmax, percentile, not 'max': did you mean minmax?"),
        ({"bits": 6}, "Bits must be 4 or 8, not 6"),
    ])
    def test_errors(self, changes, message):
        refuses(message, SchemeOptions, **changes)
