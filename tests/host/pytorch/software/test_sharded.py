"""Models in shards on a ring in software: bits of training, and messages about mistakes."""

import json
import os
import subprocess
import sys

import pytest

from tests.host.pytorch.commands import SCRIPTS

pytest.importorskip("torch")

ROOT = SCRIPTS.parents[3]


def torchrun(ranks, *arguments):
    """Run a script on some ranks; return its output."""
    ended = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                            str(ranks), *map(str, arguments)], capture_output=True, text=True, timeout=300,
                           check=False, env=os.environ | {"PYTHONPATH": str(ROOT)})
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0
    return ended.stdout


def test_random_models():
    """Models of all kinds have the golden ring's bits, and are close to gloo's where nothing is lossy.

    The script's own option makes more cases.
    """
    assert "0 of 5 cases differ" in torchrun(4, SCRIPTS / "sharded.py", "--cases", 5, "--seed", 29)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of each of three ranks."""
    path = tmp_path_factory.mktemp("collectives") / "result"
    torchrun(3, SCRIPTS / "shard_collectives.py", path)
    return [json.loads(path.with_name(f"result.{rank}").read_text(encoding="utf-8")) for rank in range(3)]


def test_forms(results):
    """Every form of a reduce-scatter gives the same sums, for every type and operation that a ring has."""
    for result in results:
        assert len(result["forms"]) >= 30
        assert all(result["forms"].values()), result["forms"]


def test_other_collectives(results):
    """Collectives that add nothing, or have other types, give the results of gloo."""
    assert all(all(result["others"].values()) for result in results)


@pytest.mark.parametrize(("name", "text"), [
    ("float64", "Tensors of PREMUL_SUM must be of float32 or bfloat16 on cpu, not torch.float64 on cpu: multiply "
                "them first, and use SUM"),
    ("integers", "Tensors of PREMUL_SUM must be of float32 or bfloat16 on cpu, not torch.int32 on cpu: multiply them "
                 "first, and use SUM"),
    ("operation", "Cannot use ReduceOp.BAND with non-integral dtype"),
    ("lengths", "Rank 2 asks for a reduce-scatter of 3 shards of 5 elements in group 4, and rank 0 for a "
                "reduce-scatter of 3 shards of 4 elements in group 4: all ranks must ask for the same in the same "
                "order"),
    ("some", "Rank 2 asks for a reduce-scatter of 2 shards of 5 elements, and rank 1 for a reduce-scatter of 2 "
             "shards of 4 elements: all ranks must ask for the same in the same order"),
    *((name, "Parameters on the nodes must be whole on each rank, not in shards of fully_shard or "
             "FullyShardedDataParallel: take an optimizer of torch.optim")
      for name in ("fully_shard", "flat", "original"))])
def test_mistakes(results, name, text):
    """All ranks concerned get the same message, with numbers of ranks among all ranks."""
    assert {result["mistakes"][name] for result in results} - {None} == {text}


def test_residuals(results):
    """Residuals stay with their parameters when the parameters of a collective change, and nothing else has any."""
    assert all(all(result["residuals"].values()) for result in results)
