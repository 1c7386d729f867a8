# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.floating.add import FloatAdder
from hdl.optimizer.reducer import Reducer
from sim.golden.optimizer import reduce
from sim.verilated.vectors import Unit


@pytest.mark.parametrize("workers", [0, 9, 2.0])
def test_parameters(workers):
    with pytest.raises(ValueError, match="Worker count must be between 1 and 8, not ") as error:
        Reducer(workers=workers)
    assert str(error.value) == f"Worker count must be between 1 and 8, not {workers!r}"


@pytest.mark.parametrize(("workers", "levels"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (7, 3), (8, 3)])
def test_latency(workers, levels):
    assert Reducer(workers=workers).latency == levels * FloatAdder().latency


# Trees of 6 and 7 inputs cover every case in which an odd element must wait; burst tests cover powers of two.
@pytest.mark.parametrize("workers", [6, 7])
def test_sums(workers):
    generator = np.random.default_rng(workers)
    elements = generator.integers(1 << 32, size=(20_000, workers), dtype=np.uint32)
    elements[10_000:] = generator.standard_normal((10_000, workers)).astype(np.float32).view(np.uint32)
    reducer = Reducer(workers=workers)
    outputs = Unit(reducer).run({"i": elements}, drain=reducer.latency)
    assert (outputs["o"][reducer.latency:] == reduce(elements.T)).all()
