import re

import numpy as np
import pytest

from host.training import weight_files as weights
from host.training.weight_files import TrainedWeights
from host.training.workloads import WorkloadName
from tests.refusals import refuses


@pytest.fixture
def trained():
    return TrainedWeights(workload=WorkloadName.DIGITS, hidden=(64, 32), seed=7,
                          parameters=np.random.default_rng(0).standard_normal(100).astype(np.float32))


def test_round_trip(tmp_path, trained):
    path = tmp_path / "new" / "weights.npz"
    weights.save(trained, path)
    loaded = weights.load(path)
    assert (loaded.workload, loaded.hidden, loaded.seed) == (WorkloadName.DIGITS, (64, 32), 7)
    np.testing.assert_array_equal(loaded.parameters, trained.parameters)
    assert loaded.parameters.dtype == np.float32


@pytest.mark.parametrize(("changes", "message"), [
    ({"version": np.int64(1)}, "must be of version 2, not 1"),
    ({"schema": np.array("other")}, "must hold trained weights, that is hidden, parameters, schema, seed, version, "
                                    "workload, not hidden, parameters, schema, seed, version, workload"),
    ({"seed": None}, "must hold trained weights, that is hidden, parameters, schema, seed, version, workload, not "
                     "hidden, parameters, schema, version, workload"),
    ({"workload": np.array("chess")}, "must be of workload digits or text, not 'chess'"),
    ({"parameters": np.zeros(3)}, ": Array parameters must be of type float32, not float64"),
    ({"parameters": np.full((1, 2), 1, np.float32)}, ": Array parameters must be a vector, not of shape (1, 2)"),
    ({"parameters": np.array([np.nan], np.float32)}, "must have finite parameters"),
    ({"hidden": np.array([5, 0])}, "must have at most 1024 hidden layers of 1 to 1,048,576, not 2 of 0 to 5"),
    ({"hidden": np.array([1 << 40])}, "must have at most 1024 hidden layers of 1 to 1,048,576, not 1 of "
                                      "1,099,511,627,776 to 1,099,511,627,776"),
])
def test_errors(tmp_path, trained, changes, message):
    path = tmp_path / "weights.npz"
    weights.save(trained, path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    refuses(f"{path} {message}".replace(" :", ":"), weights.load, path)


@pytest.mark.parametrize("content", [b"", b"something else"])
def test_another_file(tmp_path, content):
    path = tmp_path / "weights.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} must be an npz file, not a damaged one"):
        weights.load(path)
