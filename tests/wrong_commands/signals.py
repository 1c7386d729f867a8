"""Signals that are sent to commands, during imports and during work, and their outcomes."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.wrong_commands.commands import COMMANDS, Command
from tests.wrong_commands.play import Family, survivors

ROOT = Path(__file__).parents[2]

#: CPU seconds of a command after which a signal is sent: during imports, after them, or during work.
MOMENTS = (0.3, 2.5, 6.0)
#: Seconds in which a command must end, additional seconds on a busy machine, and seconds for which it may wait.
ENDS, SLACK, WAITS = 10.0, 20.0, 200.0

#: Training run with a straggler that takes a thousand times as long as the other ranks.
LATE = ("train", "--straggler", "3:1000", "--quorum", "3", "--stale-gradients", "drop", "--cycles", "100000000")

_SCRIPT = "import time\nimport torch.distributed\ntorch.distributed.init_process_group()\ntime.sleep(100)\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    module: str
    words: tuple[str, ...]
    number: int  # number of the signal
    moment: float  # CPU seconds that the command and its programs use before the signal is sent
    twice: bool = False  # whether the signal is sent again soon afterwards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signalled:
    """Outcome of sending a signal."""

    code: int  # exit code, as in a shell
    seconds: float | None  # seconds from signal to end; None if the command had ended before
    wrong: list[str]  # requirements that are violated


def plan(commands: Sequence[Command] = COMMANDS, moments: Sequence[float] = MOMENTS) -> list[Sent]:
    """Plan every combination of signal, command and moment. Commands get only the operands that they require."""
    planned = []
    for command in commands:
        needed = [option.samples[0] for option in command.options if not option.name and option.required]
        output = ["--output=out"] if any(option.name == "--output" for option in command.options) else []
        for index, moment in enumerate(moments):
            for number in (signal.SIGINT, signal.SIGTERM):
                planned.append(Sent(module=command.module, words=(*command.path, *output, *needed), number=number,
                                    moment=moment, twice=index == 1))
    return planned


def hear_interrupts() -> None:
    """Restore the default handler of SIGINT, as programs ignore SIGINT if the tests run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def send(sent: Sent, folder: Path) -> Signalled:
    """Start a command in an empty folder, and send the signal to it."""
    folder.mkdir(parents=True)
    (folder / "script.py").write_text(_SCRIPT)
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen([sys.executable, "-m", sent.module, *sent.words], cwd=folder, stdout=printed,
                                   stderr=printed, stdin=subprocess.DEVNULL, start_new_session=True,
                                   preexec_fn=hear_interrupts,
                                   env={**os.environ, "PYTHONPATH": str(ROOT)})
    family, began, wrong, seconds = Family(process.pid), time.monotonic(), [], None
    while process.poll() is None and family.seconds < sent.moment and time.monotonic() < began + WAITS:
        family.look()
        time.sleep(0.01)
    if process.poll() is None:
        asked = time.monotonic()
        process.send_signal(sent.number)
        if sent.twice:
            time.sleep(0.3)
            process.send_signal(sent.number)
        try:
            process.wait(ENDS + SLACK)
        except subprocess.TimeoutExpired:
            wrong.append(f"not ended {ENDS + SLACK:g} s after the signal")
            process.kill()
            process.wait()
        seconds = time.monotonic() - asked
    if left := survivors(family):
        wrong.append(f"{left} processes are left")
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    text = (folder / "printed").read_text(errors="replace")
    if "Traceback" in text or "Exception ignored" in text:
        wrong.append("a traceback")
    if seconds is not None and code not in (0, 128 + sent.number):
        wrong.append(f"code {code}")
    return Signalled(code=code, seconds=seconds, wrong=[*wrong, *([text[-2000:]] if wrong else [])])
