"""Reproducible sums of four processes over gloo, without a launcher or a ring."""

import json
import os
import subprocess
import sys

import pytest

from tests.host.pytorch.commands import SCRIPTS, launch
from tests.present import needs

needs("reproducible")
pytest.importorskip("torch")

MODELS = 200


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Results that rank 0 of the script prints."""
    store = tmp_path_factory.mktemp("store") / "store"
    script, root = str(SCRIPTS / "reproducible_ranks.py"), str(SCRIPTS.parents[3])
    ranks = [subprocess.Popen([sys.executable, script, str(rank), str(store), str(MODELS)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root})
             for rank in range(4)]
    try:
        said = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 4, said[0][1] + said[1][1]
    return json.loads(said[0][0].splitlines()[-1])


def test_models(result):
    """DDP's averages for random models equal the golden model's, for any bucket size and order of ranks."""
    assert result["models"] == 2 * MODELS


@pytest.mark.parametrize("name", ["kept", "narrow", "integers"])
def test_numbers_of_ranks(result, name):
    """Training with microbatches gives the same weights, skipped steps and random numbers on 1 to 4 ranks."""
    outcomes = result[name]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0][1] == (name == "integers")


def test_faults(result):
    """A block with a wrong checksum is summed once more on all ranks; the script itself checks the result."""
    assert result["faults"] == ("Checksums of blocks 0 of 3 were wrong twice: look for faults of memories and links "
                                "of the ranks")


def test_launched(result, tmp_path):
    """A script started by ``gradring launch -n 2`` ends with the same bits as on 1 to 4 ranks without a ring."""
    launch("-n", 2, "--transport", "golden", "--output", tmp_path, SCRIPTS / "reproducible_ranks.py", "launched",
           tmp_path / "weights.json")
    assert json.loads((tmp_path / "weights.json").read_text()) == result["kept"][0]


def test_misuse(result):
    """If ranks' arguments differ, or one rank has an error, all ranks end with a one-line message before any sum."""
    said = result["misuse"]
    sums = "ValueError: Ranks must sum tensors of the same shapes, with the same width and number of addends"
    steps = ("ValueError: Ranks must take the same step of the same model, with the same count, seed, headroom and "
             "width, and begin with equal weights")
    for names, text in (("width shapes number", sums), ("step weights seed count headroom", steps)):
        for name in names.split():
            assert said.pop(name) == [text, text], name
    assert said == {"type": [
        "RuntimeError: Another rank cannot take part in this sum: see its message",
        "ValueError: Tensors must be dense and of torch.float32, not torch.strided of torch.float64"]}
