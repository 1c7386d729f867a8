"""Simulation server that loads cocotb, Amaranth and test modules once, then forks per simulation.

Starting Python and cocotb takes several times as long as most simulations. Each simulation still runs in its own
process, with a fresh design and fresh Python modules.

The client, :func:`simulate`, writes one line of JSON per simulation to the server's standard input, and reads one
line back when the simulation has ended. When the client closes its end of the pipe, the server exits and ends any
running simulation.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from sim import json_files

__all__ = ["PARAMETERS", "Simulation", "seconds", "simulate"]

#: Environment variable that holds a simulation's parameters as JSON.
PARAMETERS = "GRADRING_PARAMETERS"


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Parameters of one simulation.

    Members
    -------
    library : str
        Path of the design's shared library, which has the functions ``simulate`` and ``simulation_end``.
    top : str
        Name of the design's top module.
    module : str
        Module of the cocotb tests.
    tests : str or None
        Regular expression for the full names of the tests to run; None runs all.
    parameters : str
        JSON that is read by :func:`sim.regression.parameters`.
    seed : int
        Seed of cocotb's random module.
    folder : str
        Working folder; output is written to ``simulation.log`` and results to ``results.xml``.
    waves : bool
        Whether to write waveforms, which the design must have been built for.
    """

    library: str
    top: str
    module: str
    tests: str | None
    parameters: str
    seed: int
    folder: str
    waves: bool = False


# --- Client

_server: subprocess.Popen[str] | None = None
_seconds = 0.0


def seconds() -> float:
    """CPU seconds of the server and its simulations, known only after the server has ended."""
    return _seconds


def simulate(simulation: Simulation) -> int:
    """Run one simulation to its end; return its exit status, or -n if it was killed by signal n."""
    global _seconds
    server = _running()
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps(dataclasses.asdict(simulation)) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
    except BrokenPipeError:
        answer = ""
    except BaseException:  # after a timeout or Ctrl-C, nobody would read the pending answer
        _stop()
        raise
    if not answer:
        _stop()
        raise RuntimeError("The process that simulates for cocotb has ended; its output is above")
    answered = json_files.parse_product(answer)
    _seconds = answered["seconds"]
    return int(answered["status"])


def _running() -> subprocess.Popen[str]:
    global _server, _seconds
    if _server is not None and _server.poll() is None:
        return _server
    _stop()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COCOTB_ANSI_OUTPUT": "0",
                   # No threads are used, since a process with threads cannot be forked safely.
                   "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    _server = subprocess.Popen([sys.executable, "-m", __name__], env=environment, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return _server


@atexit.register
def _stop() -> None:
    global _server
    if _server is None:
        return
    assert _server.stdin is not None
    assert _server.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        _server.stdin.close()
    try:
        _server.wait(10)
    except subprocess.TimeoutExpired:
        _server.kill()
        _server.wait()
    _server.stdout.close()
    _server = None


# --- Server


def _serve() -> None:
    """Answer requests until the client closes the pipe."""
    from cocotb.regression import RegressionManager

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends with the client
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that the output of modules does not mix with the answers
    RegressionManager.setup_pytest_assertion_rewriting()  # applies to all modules loaded from now on
    RegressionManager.setup_pytest_assertion_rewriting = classmethod(lambda cls: None)
    for line in sys.stdin:
        simulation = Simulation(**json_files.parse_product(line))
        # The simulation loads the module again and reports its errors.
        with contextlib.suppress(BaseException):
            importlib.import_module(simulation.module)
        status = _forked(simulation)
        used = sum(usage.ru_utime + usage.ru_stime
                   for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        replies.write(json.dumps({"status": status, "seconds": used}) + "\n")
        replies.flush()


def _forked(simulation: Simulation) -> int:
    """Run a simulation in a separate process; if the client exits, the server ends too."""
    ended, ends = os.pipe()
    child = os.fork()
    if not child:
        os.close(ended)  # the other end is closed when this process exits
        _simulate(simulation)
    os.close(ends)
    readable, _, _ = select.select([0, ended], [], [])
    os.close(ended)
    if 0 in readable:  # no request is sent before the previous answer, so this is the end of input
        os.kill(child, signal.SIGKILL)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _simulate(simulation: Simulation) -> NoReturn:
    import cocotb.simulator
    from cocotb_tools import config

    os.chdir(simulation.folder)
    for number, name, mode in ((0, os.devnull, os.O_RDONLY),
                               (1, "simulation.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        file = os.open(name, mode, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.dup2(1, 2)
    os.environ.update({
        PARAMETERS: simulation.parameters,
        "COCOTB_TOPLEVEL": simulation.top,
        "COCOTB_TEST_MODULES": simulation.module,
        "COCOTB_RANDOM_SEED": str(simulation.seed),
        "COCOTB_RESULTS_FILE": str(Path(simulation.folder, "results.xml")),
        "TOPLEVEL_LANG": "verilog",
        "GPI_USERS": config.pygpi_entry_point(),
        "PYGPI_PYTHON_BIN": sys.executable,
    })
    if simulation.tests is not None:
        os.environ["COCOTB_TEST_FILTER"] = simulation.tests
    # PyDLL keeps the interpreter lock, as cocotb expects, because it starts Python itself and releases the lock.
    library: Any = ctypes.PyDLL(simulation.library)

    def end() -> NoReturn:
        """Exit the process before cocotb finalizes Python, since this function's callers are Python code."""
        failed = library.simulation_end()
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
        os._exit(1 if failed else 0)

    cocotb.simulator.stop_simulator = end
    arguments = [simulation.top, *(["--trace"] if simulation.waves else [])]
    library.simulate(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*map(str.encode, arguments), None))
    os._exit(1)  # the regression has not run to completion


if __name__ == "__main__":
    _serve()
