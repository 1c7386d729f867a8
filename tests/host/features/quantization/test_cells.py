import time

from boards.units import UNITS
from host.features.quantization.command import CellCount
from host.features.quantization.experiment import UNITS as QUANTIZATION_UNITS
from host.features.quantization.experiment import candidates


def test_units_are_synthesised_meanwhile():
    assert {candidate.unit for candidate in candidates(2)} == set(QUANTIZATION_UNITS) <= {
        f"{unit}{option}" for unit in UNITS for option in ("", "-bits=4")}
    cells = CellCount(["stream.skid_buffer", "stream.none"])
    assert 30 < cells("stream.skid_buffer") < 50
    assert cells("stream.none") is None
    cells.close()


def test_close():
    """Closing ends a synthesis that is still running, so that an interrupted command need not wait for it."""
    cells = CellCount(["node"])
    while cells._process is None:
        time.sleep(0.01)
    cells.close()
    assert cells._process.wait(60) != 0
    assert cells("node") is None
