"""Read damaged files one after another in a separate process with limited memory."""

import dataclasses
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from host.cli import EXPECTED
from tests.damaged.kinds import KINDS

#: Limits: bytes of memory beyond the process's own, and seconds per file.
BOUND, SECONDS = 1 << 30, 30
#: Number of zero bytes appended to every hundredth file.
LARGE = 4 << 30


@dataclasses.dataclass
class Outcome:
    files: int = 0
    refused: int = 0  # number of files rejected with a one-line message
    taken: int = 0  # number of files read, or treated as absent
    wrong: list[str] = dataclasses.field(default_factory=list)  # wrong outcomes, each with a file number
    bytes: int = 0  # peak memory minus the process's memory before the run, in bytes
    seconds: float = 0.0  # processor time of all reads


def _memory(name: str) -> int:
    """Return a field of this process's memory statistics, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) << 10


def _late(number: int, frame: Any) -> None:
    raise TimeoutError(f"a file took more than {SECONDS} seconds")


def _play(name: str, files: int, seed: int, folder: Path) -> Outcome:
    kind, outcome, began = KINDS[name], Outcome(), time.process_time()
    path = folder / kind.name
    kind.write(path)
    whole = path.read_bytes()
    original = kind.read(path)
    signal.signal(signal.SIGALRM, _late)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory, so that it is measured from here
    limit = _memory("VmSize") + BOUND
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for number in range(files):
        rng = np.random.default_rng([seed, number])
        mutation = kind.mutations[rng.integers(len(kind.mutations))]
        path.write_bytes(mutation(whole, rng))
        if number % 100 == 7:
            os.truncate(path, path.stat().st_size + LARGE)
        outcome.files += 1
        signal.alarm(SECONDS)
        try:
            value = kind.read(path)
        except TimeoutError as error:
            outcome.wrong.append(f"{number} {mutation.__name__}: {error}")
        except EXPECTED as error:
            outcome.refused += 1
            if "\n" in str(error):
                outcome.wrong.append(f"{number} {mutation.__name__}: several lines: {error}")
        except BaseException:  # the user would see any other exception as a traceback
            outcome.wrong.append(f"{number} {mutation.__name__}: {traceback.format_exc()[-1500:]}")
        else:
            outcome.taken += 1
            if kind.unchanged and value and repr(value) != repr(original):  # short arrays, so repr is complete
                outcome.wrong.append(f"{number} {mutation.__name__}: a damaged file was taken")
        finally:
            signal.alarm(0)
    outcome.bytes = max(0, _memory("VmHWM") - before)
    outcome.seconds = time.process_time() - began
    if outcome.bytes > BOUND:
        outcome.wrong.append(f"reading took {outcome.bytes:,} bytes")
    return outcome


def _child(connection: Any, name: str, files: int, seed: int, folder: Path) -> None:
    try:
        connection.send(_play(name, files, seed, folder))
    except BaseException:
        connection.send(Outcome(wrong=[traceback.format_exc()]))


def play(name: str, *, files: int, seed: int) -> Outcome:
    """Read damaged files of one kind in a separate process; memory used to damage them counts towards the limit."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(there, name, files, seed, Path(folder)))
        process.start()
        there.close()
        try:
            return here.recv()
        except EOFError:
            process.join()
            return Outcome(wrong=[f"the process has ended with {process.exitcode}"])
        finally:
            process.join()
