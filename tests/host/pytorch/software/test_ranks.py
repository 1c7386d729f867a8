"""Rings in software: bits of collectives in four processes, and of scripts under torchrun."""

import json
import os
import subprocess
import sys

import pytest

from hdl.registry import FEATURES
from host.gradients.files import addends_of, load
from tests.host.pytorch.commands import SCRIPTS, launch

pytest.importorskip("torch")

ROOT = SCRIPTS.parents[3]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Output of rank 0."""
    store = tmp_path_factory.mktemp("store") / "store"
    ranks = [subprocess.Popen([sys.executable, SCRIPTS / "software_ranks.py", str(rank), store],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT)}) for rank in range(4)]
    try:
        said = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 4, said[0][1] + said[1][1]
    return json.loads(said[0][0].splitlines()[-1])


def test_bits(result):
    """Sums, shards, residuals, weights and state are those of the golden ring, over gloo and in shared memory."""
    assert result["sums"] >= 3 * 4 * 2 * 11 * 2
    assert result["shards"] >= 3 * 4 * 2 * 2
    assert result["updates"] >= 3 * 4 * 2 * 3


def test_texts(result):
    """Ranks know whether all of them have the same text, and can tell the texts."""
    assert result["equal"] == [True, False]
    assert result["texts"] == ["", "a", "aa", "aaa"]


def torchrun(*arguments, expect=0, **environment):
    """Run a script on three ranks; return its output and its errors."""
    ended = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3",
                            *map(str, arguments)], capture_output=True, text=True, timeout=300,
                           check=False, env=os.environ | {"PYTHONPATH": str(ROOT), **environment})
    print(ended.stdout, ended.stderr)
    assert ended.returncode == expect
    return ended.stdout, ended.stderr


def test_torchrun(tmp_path):
    """The script ends with the same weights and state under torchrun, and under the launcher, as on golden nodes.

    The launcher's reports have the same words and modelled cycles, and recorded gradients are the same.
    """
    codec, results, reports, prints = "mx9" if "mx" in FEATURES else "raw", [], [], []
    for run in ("golden", "software", "torchrun"):
        arguments = (SCRIPTS / "in_software.py", tmp_path / f"{run}.json")
        record = tmp_path / f"{run}_gradients"
        if run == "torchrun":
            torchrun(*arguments, GRADRING_GRADIENTS=codec, GRADRING_RECORD_GRADIENTS=str(record))
        else:
            printed, _ = launch("-n", 3, "--transport", run, "--gradients", codec, "--output", tmp_path / run,
                                "--record-gradients", record, *arguments)
            prints.append(printed)
            reports.append(json.loads((tmp_path / run / "report.json").read_text(encoding="utf-8"))["per_operation"])
        results.append(json.loads((tmp_path / f"{run}.json").read_text(encoding="utf-8")))
    assert results[1:] == results[:1] * 2
    assert results[0]["ranks"] == [results[0]["ranks"][0]] * 3
    assert "Computed by the ranks with compiled kernels: no node was simulated, and cycles are modelled." in prints[1]
    of_data = {"seconds", "words_zero_value", "sent", "nonzeros", "density"}
    golden, software = ([{name: value for name, value in row.items() if name not in of_data} for row in rows]
                        for rows in reports)
    assert software == golden
    assert len(golden) > 10
    for run, printed in (("software", prints[1]), ("torchrun", None)):
        _check_gradients(printed, tmp_path / f"{run}_gradients", tmp_path / "golden_gradients")


def _check_gradients(printed, launched, other):
    """Both runs have recorded the same gradients, in three modules, three steps and three ranks."""
    size = sum(path.stat().st_size for path in launched.iterdir()) / 1e6
    assert printed is None or printed.endswith(f"27 files of gradients, {size:.1f} MB: gradring lab formats "
                                               f"--gradients {launched}\n")
    samples = [load(folder) for folder in (launched, other)]
    assert len(samples[0]) == len(samples[1]) == 27 * 6
    for first, second in zip(*samples, strict=True):
        assert first.key == second.key
        assert first.values.tobytes() == second.values.tobytes()
    assert {sample.parameter for sample in samples[0]} == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight",
                                                           "3.bias"}
    addends = addends_of(samples[0])
    assert len(addends) == 9 * 6
    assert all(len({row.tobytes() for row in each.values}) == 3 for each in addends if each.parameter == "3.weight")


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """Messages of rank 0 about mistakes, which are those of all ranks."""
    path = tmp_path_factory.mktemp("misuse") / "messages"
    torchrun(SCRIPTS / "software_misuse.py", path)
    each = [json.loads(path.with_name(f"messages.{rank}").read_text(encoding="utf-8")) for rank in range(3)]
    assert each[1:] == each[:1] * 2
    return each[0]


@pytest.mark.parametrize(("name", "text"), [
    ("rate", "Optimizer of rank 1 must be that of rank 0, SGD(learning_rate=0.2, "),
    ("weights", "Weights and state of rank 1 must be those of rank 0: broadcast them first, as "),
    ("lengths", "Rank 2 asks for a sum of 5 elements in group 2, and rank 0 for a sum of 4 elements "),
    ("skipped", "Rank 2 asks for a sum of 4 elements in group 3, and rank 0 for a step of job "),
    ("afterwards", "Weights and state of rank 1 must be those of rank 0: ")])
def test_mistakes(messages, name, text):
    """All ranks get the same message. After an error, every operation fails with it."""
    assert messages[name].startswith(text)


def test_later_groups(messages):
    """An optimizer goes on in a process group that is created after its own."""
    assert messages["right"] is None
    assert messages["weight"] == -1


def test_wrong_codec():
    """The message says what is possible."""
    for name, text in (("mx1", "GRADRING_GRADIENTS must be one of "),
                       *([("sum32", "Codec of a ring in software must have packets of a fixed size")]
                         if "reproducible" in FEATURES else [])):
        ended = subprocess.run([sys.executable, "-c", "from host.pytorch.client import client; client()"],
                               capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
                               env=os.environ | {"GRADRING_GRADIENTS": name})
        assert text in ended.stderr
