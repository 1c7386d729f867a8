"""PyTorch scripts on a simulated ring, started with `gradring launch`."""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from host.jobs.simulate import simulate
from host.training.optimizers import AdamW
from sim.verilated.processes import is_alive
from tests.host.pytorch.commands import SCRIPTS, launch
from tests.slow_ranks.plan import judge, plan

pytest.importorskip("torch")

SLOW_SCRIPT = Path(__file__).parents[2] / "slow_ranks" / "script.py"


def test_tutorial(tmp_path):
    """Losses match gloo's except for rounding, ranks are bit-identical, and figures are printed."""
    printed, _ = launch("-n", 4, "--output", tmp_path, SCRIPTS / "same_as_gloo.py", tmp_path / "losses.json")
    losses = np.array(json.loads((tmp_path / "losses.json").read_text()))
    assert len(losses) == 15
    # each loss is a sum of four float32 numbers below 1, but the order of additions differs
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=0, atol=1e-5)
    assert losses[-1, 0] < losses[0, 0] - 0.5
    report = json.loads((tmp_path / "report.json").read_text())
    largest = report["groups"][0]
    assert (largest["kind"], largest["operations"], largest["elements"]) == ("all_reduce", 15, 15 * 2410)
    assert largest["bound"] <= largest["cycles"] < 2 * largest["bound"]
    assert report["gloo"]["allgather"]["bytes"] > 4 * 2410 * 4
    assert report["gloo"]["allreduce"]["calls"] >= 8
    assert re.search(rf"cycles each +{largest['cycles'] / 15:,.0f} ", printed)
    assert "identical to the golden model, bit for bit, in all of 16 operations" in printed
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_optimizer_on_nodes(tmp_path):
    """A step of an optimizer on the nodes matches `Job.step` bit for bit, whatever else the script does."""
    _, errors = launch("-n", 2, "--output", tmp_path, SCRIPTS / "on_nodes.py", tmp_path)
    assert not errors
    ranks = [dict(np.load(tmp_path / f"rank{rank}.npz")) for rank in (0, 1)]
    np.testing.assert_array_equal(ranks[0]["weights"].view(np.uint32), ranks[1]["weights"].view(np.uint32))
    lengths = (81, 30)
    groups = [AdamW(0.01, weight_decay=0.01, clip=0.5), AdamW(0.02, weight_decay=0.1, clip=0.5)]
    with simulate(nodes=2, length=lengths, optimizer=groups) as job:
        places = np.concatenate([np.arange(group.start, group.stop) for group in job.groups])
        vector = np.zeros((2, job.length), np.float32)
        vector[0, places] = ranks[0]["weights"][0]
        job.load(vector[0])
        for step, rates in enumerate(ranks[0]["rates"]):
            vector[:, places] = [rank["gradients"][step] for rank in ranks]
            weights, _ = job.step(vector, [dataclasses.replace(optimizer, learning_rate=float(rate))
                                           for optimizer, rate in zip(groups, rates, strict=True)])
            np.testing.assert_array_equal(weights[places].view(np.uint32),
                                          ranks[0]["weights"][step + 1].view(np.uint32))


def test_failing_ranks(tmp_path):
    """Only ranks that are late for an operation are reported. After a rank is killed during a sum, the other ranks
    report the reason and end within two seconds, and no process remains."""
    slow, seed = 0.5, random.randrange(1 << 31)
    print(f"seed {seed}")
    cases = plan(4, ranks=3, slow=slow, seed=seed)
    (tmp_path / "plan.json").write_text(json.dumps([dataclasses.asdict(case) for case in cases]))
    process = subprocess.Popen([sys.executable, "-m", "gradring", "launch", "-n", "3", "--slow", str(slow),
                                "--output", tmp_path, SLOW_SCRIPT, tmp_path / "plan.json", tmp_path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        files = [tmp_path / f"{rank}.pid" for rank in range(3)]
        limit = time.monotonic() + 240
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < limit
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        time.sleep(0.3)  # by now, the ranks are computing a sum, which takes at least half a second
        ranks = [int(file.read_text()) for file in files]
        begun = time.monotonic()
        os.kill(ranks[1], signal.SIGKILL)
        while running(ranks):
            assert time.monotonic() < begun + 2, running(ranks)
            time.sleep(0.02)
        print(f"ended {time.monotonic() - begun:.2f} s after the kill")
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        rest = process.communicate()
        print(*rest)
    text = "Rank 1 has ended by signal SIGKILL; the others cannot go on without it"
    assert process.returncode == 1
    assert errors.rstrip().splitlines()[-1] == f"error: {text}"
    assert errors.count(text) == 1
    assert "Traceback" not in errors
    assert judge(cases, printed.splitlines()) == [True] * len(cases), printed


def running(processes):
    """Processes among the given ones that have not ended."""
    return list(filter(is_alive, processes))


def test_error_of_a_rank(tmp_path):
    """All ranks report the first error of any rank as the reason, even if they wait in gloo. A process group may have
    a shorter timeout than the ring."""
    (tmp_path / "script.py").write_text(
        "import datetime\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group(timeout=datetime.timedelta(seconds=200))\n"
        "if dist.get_rank():\n"
        "    raise KeyError('a fault')\n"
        "dist.barrier()\n")
    _, errors = launch("-n", 2, "--output", tmp_path, tmp_path / "script.py", expect=1)
    text = "Rank 1 has ended by KeyError: 'a fault'; the others cannot go on without it"
    assert errors.rstrip().splitlines()[-1] == f"error: {text}"
    assert errors.count(text) == errors.count("Traceback") == 1


def test_what_is_true_at_each_pass(tmp_path):
    """All ranks get the same values as with gloo, even when optimizers, groups, frozen parameters or types change."""
    launch("-n", 4, "--output", tmp_path, SCRIPTS / "steps.py", tmp_path / "ends.json")
    ends = json.loads((tmp_path / "ends.json").read_text())
    # The mean factor of the ranks is 2.5. Steps 2 and 4 have gradients 4 and 64; steps 1 and 3 have an infinite
    # gradient.
    assert ends["scaler"] == [[1 - 2.5 * (4 + 64), 1.0]] * 4
    assert ends["not_finite"] == [[True, True]] * 4
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["nonfinite_operations"] == 2
    assert report["unequal_weights"] == [{"ranks": [1], "parameter": "weight", "backward_pass": 1}]
    names = ("rank", "step", "backward_pass", "parameter", "indices", "value")
    assert [tuple(map(row.get, names)) for row in report["nonfinite"]] == [
        (2, 0, 2, "weight", [0, 1], "nan"), (3, 1, 1, "weight", [0, 0], "inf")]
    # Adam's steps are 0.5 except for epsilon, which float32 rounds away here. The means are 2.5 and -2.
    assert ends["another_optimizer"] == [[[1 - 3 * 0.5 - 3 * 0.5 * 2.5, 2 + 3 * 0.5 + 3 * 0.5 * 2]]] * 4
    assert ends["groups"] == [[[1.5]], [[1.5]], [[3.5]], [[3.5]]]
    # In three of four steps, the output weight has the gradient 1 * 2 r + 2 * 2, and the learning rate is 0.25.
    assert ends["frozen"] == [[[[1.0, 2.0]], [[4 - 3 * 0.25 * (2 * 1.5 + 4)]]]] * 4
    assert ends["types"] == [[2.5, 2.5]] * 4
    # Even ranks run one local pass, and odd ranks run two; all ranks skip the middle step. With a momentum of 0.5,
    # the first two steps are 1 and 1.5 times the mean, and the step after a reset is 1 times the mean.
    assert ends["copies"] == [[2.5, 2.5, -2.5 * (1 + 1.5 + 1)]] * 4
    # Two of the five steps are skipped, each of which halves the scale.
    assert ends["unequal_skips"] == [[-(1.0 + 8 + 16), 1.0]] * 4
    assert ends["circle"] == [-2 * 2.5] * 4
    own = ("Parameters of an optimizer of gradring.torch must be in a module of all ranks, not in one of a process "
           "group of 2")
    assert ends["own_hook"] == [[2.5, 2.5, mean, mean, own] for mean in (1.5, 1.5, 3.5, 3.5)]
    # Ranks 0 to 3 have 1 to 4 inputs of value 4, so the means are 4, 3, 2 and 1.
    assert ends["uneven_inputs"] == [[
        -10.0, "join() must have divide_by_initial_world_size=True, not False",
        "join() must have optimizers of torch.optim, not of gradring.torch"]] * 4
    assert ends["changed_groups"] == [[
        "Groups of an optimizer on the nodes must be given when it is made",
        "Parameters that were frozen when an optimizer on the nodes was made must stay so",
        "Groups of an optimizer on the nodes must keep the parameters that they were made with",
        [[-1.0, -1.0]]]] * 4
    assert ends["passes_of_one_rank"] == [-4.0] * 4
    assert ends["two_groups"] == [[10.0, 60.0]] * 4
    assert ends["loop"] == [[[1 - 2 * 0.5 * 2.5, 1 - 2 * 0.5 * (2 + (1 + 2 * 2 + 3 + 2 * 4) / 4)]]] * 4


@pytest.mark.parametrize(("case", "text"), [
    ("buffers", "asks for the buffers of a module after 0 steps, 3 forward passes and 1 backward pass, and rank 0 "
                "for a sum of 33 elements after 0 steps, 2 forward passes and 2 backward passes"),
    ("late", "asks for a step of job 0 after 2 steps, 3 forward passes and 3 backward passes, and rank 0 after "
             "2 steps, 2 forward passes and 2 backward passes"),
    ("plain", "asks for a step of job 0 after 2 steps, 3 forward passes and 2 backward passes, and rank 0 after "
              "2 steps, 2 forward passes and 2 backward passes")])
def test_step_that_one_rank_skips(tmp_path, case, text):
    """If only one rank skips a step, the next operation fails at once on all ranks, and the error gives the cause."""
    _, errors = launch("-n", 2, "--output", tmp_path, SCRIPTS / "skipped.py", case, expect=1)
    assert errors.rstrip().splitlines()[-1] == (
        f"error: Rank 1 {text}: all ranks must make the same steps and passes; look for one that is skipped on some "
        f"ranks only, as after a loss that is not finite, and for an evaluation without torch.no_grad()")


@pytest.mark.parametrize(("length", "end"), [(2000, "leave"), (200_000, "destroy")])
def test_sums_that_a_script_does_not_await(tmp_path, length, end):
    """They are completed before the ranks leave, on nodes and in software."""
    launch("-n", 2, "--output", tmp_path, SCRIPTS / "unawaited.py", length, end)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["operations"], report["elements"]) == (5, 5 * length)
    assert report["options"]["transport"] == ("verilated" if length == 2000 else "software")


@pytest.mark.parametrize(("arguments", "text"), [
    (("nothing.py",), "Script must be a file, not 'nothing.py': options of gradring go before it"),
    (("--density", 2, __file__), "Density must be above 0 and at most 1, not 2.0"),
    (("-n", 17, __file__), "Ring must have between 1 and 16 nodes, not 17"),
    (("--timeout", 5, __file__), "Slow ranks must be named after more than 0 seconds and before the timeout of"),
    (("--gradients", "mx10", __file__), "NodeConfig.gradients must be one of "),
    (("--transport", "software", "--density", 0.5, __file__), "Option --density is for nodes, not for --transport "),
    (("--transport", "software", "--gradients", "zero_value", __file__), "Gradients must be raw for --transport "),
    (("--transport", "software", "--no-check", __file__), "Option --check is for gateware, not for --transport "),
    (("--record-gradients", __file__, __file__), f"Output must be a folder, not the file {__file__}"),
])
def test_bad_input(run, tmp_path, arguments, text):
    code, _, errors = run("launch", "--output", tmp_path, *arguments)
    assert code == 1
    assert errors.startswith(f"error: {text}")
    assert not list(tmp_path.iterdir())
