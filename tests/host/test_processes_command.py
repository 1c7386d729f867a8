"""Simulations that are split into several processes match a single process in bits, cycles and words."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host.run.processes import check_alone, other_processes, serves, threads_of
from host.transports.session import TransportName, grid_of, open_session
from sim.verilated.part_processes import LocalProcesses
from tests.host.results import results
from tests.host.rings import CONFIGS
from tests.partition.play import Case, play
from tests.refusals import refuses

#: Arguments of the first run in test_cli, but with a link latency for which processes exchange words every 256
#: cycles.
RUN = ("train", "--nodes", "3", "--epochs", "1", "--hidden", "none", "--batch", "500", "--link-latency", "256")

without_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None,
                                 reason="mpi4py is not installed: 'make .venv/.mpi' installs it and Open MPI")
#: The option is needed in containers, which run as root and may have fewer cores than there are processes.
MPIRUN = ("mpirun", "--oversubscribe", "-n", "2", sys.executable)
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    train(folder, "--threads", "1")
    return results(folder)


def train(folder, *arguments, command=(sys.executable,)):
    done = subprocess.run([*command, "-m", "gradring", *RUN, *arguments, "--output", str(folder)], cwd=ROOT,
                          env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [("--processes", "2"), ("--processes", "3", "--host-port")])
def test_the_same_run(expected, arguments, tmp_path):
    train(tmp_path, "--threads", "1", *arguments)
    result, weights = results(tmp_path)
    wanted, trained = expected
    if "--host-port" in arguments:  # reported cycles are equal, but more cycles are simulated
        assert result.pop("cycles_simulated") == result["cycles"] > wanted["cycles_simulated"]
        assert result.pop("host_port")["simulated"]
        wanted = {name: value for name, value in wanted.items() if name not in ("cycles_simulated", "host_port")}
    assert result == wanted
    assert weights == trained


@without_mpi
def test_the_same_run_by_mpi(expected, tmp_path):
    train(tmp_path, "--threads", "1", command=MPIRUN)
    assert results(tmp_path) == expected


@pytest.mark.parametrize(("case", "processes"), [(Case(4, 64), 4), (Case(8, 256), 2), (Case(16, 16), 4)])
def test_whole_nodes(case, processes):
    """The digest of a collective is the same in one and several processes; ``make partition`` tests more rings."""
    assert play(case, grid=case.latency).digest == play(case, processes=LocalProcesses(processes),
                                                        grid=case.latency).digest


@without_mpi
def test_whole_nodes_by_mpi():
    done = subprocess.run([*MPIRUN, "-m", "tests.partition", "--nodes", "4", "--latencies", "64"], cwd=ROOT,
                          env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 of MPI processes: the same") == 2


def test_grid_of_a_session():
    """Words are exchanged every 16 to 256 cycles: at the link latency, rounded down to a multiple of 16."""
    assert [grid_of(latency) for latency in (1, 16, 31, 32, 100, 255, 256, 10_000)] == [
        16, 16, 16, 32, 96, 240, 256, 256]


def children(process):
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def kill_second(command):
    """Kill the second process during a run; return the message of the first one, and how long it took to exit."""
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as first:
        try:
            for line in first.stdout:
                if "train (" in line or "epoch" in line:
                    break
            victim = children(first.pid)[-1]
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            begun = time.monotonic()
            said = "".join(first.communicate(timeout=60))
            return first.returncode, victim, said, time.monotonic() - begun
        finally:
            first.kill()


def test_a_process_that_dies(tmp_path):
    code, victim, said, seconds = kill_second(
        [sys.executable, "-m", "gradring", *RUN, "--epochs", "500", "--processes", "2", "--output", str(tmp_path)])
    assert code == 1
    assert f"error: The ring's process 1 of 2 (PID {victim}, SIGKILL), which had nodes 1 to 2, has ended" in said
    assert seconds < 10


@without_mpi
def test_a_process_of_mpi_that_dies(tmp_path):
    code, victim, said, seconds = kill_second(
        [*MPIRUN, "-m", "gradring", *RUN, "--epochs", "500", "--output", str(tmp_path)])
    assert code != 0
    assert f"process rank 1 with PID {victim} " in said
    assert seconds < 10


def test_options(monkeypatch, run):
    assert other_processes(None, nodes=4) is None is other_processes(1, nodes=4)
    remote = other_processes(2, nodes=4)
    assert (remote.number, threads_of(None, 4, remote), threads_of(3, 4, remote)) == (2, 1, 3)
    for number in (0, 5):
        refuses(f"Processes must be between 1 and 4, the number of nodes, not {number}", other_processes, number,
                nodes=4)
    assert run("train", "--transport", "pysim", "--processes", 2)[2] == (
        "error: Option --processes is for --transport verilated, not pysim (other transports use one process): "
        "leave "
        "it out\n")
    with pytest.raises(ValueError, match=r"^Transport must be verilated for several processes, not pysim$"), \
            open_session(CONFIGS["default"], nodes=2, transport=TransportName.PYSIM, processes=remote):
        pass
    assert run("train", "--straggler", "3:4.5", "--processes", 2)[2] == (
        "error: Option --processes is for a run without --straggler: leave it out\n")
    assert not serves()
    check_alone("It")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    refuses("It must be in one process, not in the 3 that mpirun has started", check_alone, "It")
    refuses("Processes must be the 3 that mpirun has started, not 2", other_processes, 2, nodes=4)
    refuses("Processes must be between 1 and 2, the number of nodes, not 3", other_processes, None, nodes=2)
