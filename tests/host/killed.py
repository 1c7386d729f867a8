# amaranth: UnusedElaboratable=no
"""Kill a training program and a checkpoint writer at random times.

    python -m tests.host.killed folder kills seed

prints a line of JSON with the number of kills, the number of steps at each kill, and the results. Processes are
forked from one that has already imported everything, since the imports take most of the time.
"""

import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

from hdl.config import NodeConfig, Weights
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.programs.feature import Programs
from hdl.features.settable_version.feature import SettableVersion
from host import cli
from host.run import preparation
from host.training import checkpoint
from tests.host.results import results
from tests.host.rings import CONFIGS

#: A run of 24 steps with momentum, with mx9 for both gradients and weights.
ARGUMENTS = ["train", "--nodes", "4", "--gradients", "mx9", "--weights", "mx9", "--hidden",
             "none", "--state-planes", "2",
             "--batch", "120", "--epochs", "2", "--checkpoint", "1", "--threads", "1"]
DEADLINE = 60.0


def start(action, log):
    """Fork a process that performs an action and exits."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        action()
        code = 0
    except SystemExit as error:
        code = error.code or 0
    finally:
        os._exit(code)


def train(folder, *options):
    sys.argv = ["gradring", *ARGUMENTS, "--output", str(folder), *options]
    cli.main()


def write(path):
    """Write checkpoints in an endless loop; all values in a checkpoint are the same number."""
    for number in range(1 << 20):
        checkpoint.save(path, {}, {"number": number, "array": np.full(100_000, number)})


def identity(path):
    """Identity of a file, which changes when the file is replaced."""
    return path.stat().st_ino if path.exists() else None


def replaced(path, times):
    """Return a function that reports whether a file has been replaced ``times`` times or more."""
    seen = [identity(path)]

    def tell():
        if identity(path) != seen[-1]:
            seen.append(identity(path))
        return len(seen) > times

    return tell


def wait(pid, seconds, begun=lambda: True):
    """Kill a process some seconds after ``begun``; return whether it was running, and its exit code."""
    def lives():
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    end = time.monotonic() + DEADLINE
    while lives() and not begun():
        assert time.monotonic() < end
        time.sleep(0.001)
    end = time.monotonic() + seconds
    while lives() and time.monotonic() < end:
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code == -signal.SIGKILL, code


def steps(path):
    """Number of steps in a checkpoint; an incomplete checkpoint is an error."""
    if not path.exists():
        return 0
    number: int = checkpoint.peek(path)["content"]["state"]["batches"]["number"]
    return number


def main(folder, kills, seed):
    generator = random.Random(seed)
    node = functools.partial(NodeConfig, masking=False, sparsify=False, programs=Programs(), stub=ComputeStub(),
                             topology=Grid(), features=(SettableVersion(),))
    assert node(weights=Weights(codec="mx9"), gradients="mx9") == CONFIGS["mx9"]
    preparation.NodeConfig = node
    log = folder / "log"
    whole, broken = folder / "whole", folder / "broken"
    pid = start(functools.partial(train, whole), log)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, log.read_text()
    kept, killed, ended, stood, same = broken / checkpoint.NAME, 0, 0, [], True
    while True:
        log.unlink(missing_ok=True)
        pid = start(functools.partial(train, broken, "--resume"), log)
        if killed >= kills:
            died, code = wait(pid, DEADLINE)
        elif killed % 5 == 4:  # while it starts
            died, code = wait(pid, generator.uniform(0, 0.5))
        else:  # after the process has completed its first step
            died, code = wait(pid, generator.uniform(0, 0.1), replaced(kept, 1))
        if died:
            killed += 1
            stood.append(steps(kept))
            continue
        assert code == 0, log.read_text()
        ended += 1
        same = same and results(broken) == results(whole)
        if killed >= kills:
            break
        shutil.rmtree(broken)  # start over

    path, numbers = folder / "writer.npz", [-1]
    for kill in range(kills):
        pid = start(functools.partial(write, path), log)
        wait(pid, generator.uniform(0, 0.02), replaced(path, 1 + kill % 6))
        if path.exists():
            content = checkpoint.load(path, {})
            assert (content["array"] == content["number"]).all()
            numbers.append(content["number"])
    print(json.dumps({"kills": killed, "ended": ended, "stood": stood, "same": same, "written": numbers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
