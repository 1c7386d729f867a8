"""Some invalid command lines and signals; ``make wrong-commands`` tests many more."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wrong_commands import signals
from tests.wrong_commands.commands import COMMANDS
from tests.wrong_commands.draw import MISTAKES, draw
from tests.wrong_commands.play import Outcome, _verdict
from tests.wrong_commands.signals import MOMENTS, Sent, plan, send

ROOT = Path(__file__).parents[2]


def test_draw():
    """Random cases cover all commands, all kinds of mistakes and most options, and depend only on number and seed."""
    cases = [draw(number, seed=1) for number in range(2000)]
    assert cases == [draw(number, seed=1) for number in range(2000)]
    assert {case.command for case in cases} == {command.name for command in COMMANDS}
    assert {mistake for case in cases for mistake in case.mistakes} == MISTAKES.keys()
    assert 0.3 < sum(case.certain for case in cases) / len(cases) < 0.9
    words = {(case.command, word.partition("=")[0]) for case in cases for word in case.words}
    options = {(command.name, option.name) for command in COMMANDS for option in command.options if option.name}
    assert len(options - words) < 0.05 * len(options)


@pytest.mark.parametrize(("changes", "wrong"), [
    ({}, None), ({"error": ""}, "no error"), ({"error": "error: Traceback"}, "a traceback"),
    ({"code": -9}, "ended by a signal"), ({"seconds": 10.5}, "an error after 10.5 s of work"),
    ({"error": "error: x\n" * 4}, "an error of 4 lines"), ({"error": "error: " + "x" * 4000}, "an error of 1 lines"),
    ({"error": "error: \x1b[31m"}, "control characters"), ({"error": "error: x\nUserWarning: y"}, "a warning"),
    ({"code": 0}, "not refused"), ({"code": 143, "legal": True}, "not refused"),
    ({"error": "x"}, "an error of 1 lines"),
])
def test_verdict(changes, wrong):
    case = next(case for case in (draw(number, seed=0) for number in range(99)) if case.certain)
    texts = _verdict(case, Outcome(**{"code": 1, "seconds": 1.0, "legal": False, "error": "error: x\n", "wrong": [],
                                      **changes}), "")
    assert [text[:len(wrong or "")] for text in texts][-1:] == ([] if wrong is None else [wrong])


def test_wrong_commands(tmp_path):
    """Random command lines exit as required, each in its own process."""
    ended = subprocess.run([sys.executable, "-m", "tests.wrong_commands", "--cases", "12", "--seed", "54",
                            "--work", "3"], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "12 command lines of" in ended.stdout


def test_plan():
    """According to the plan, every command gets a signal at every moment in ``MOMENTS``."""
    planned = plan()
    assert len(planned) == 2 * len(COMMANDS) * len(MOMENTS)
    assert {sent.moment for sent in planned if sent.words[:2] == ("lab", "sweep")} == {*MOMENTS}
    assert sum(sent.twice for sent in planned) == 2 * len(COMMANDS)


@pytest.mark.parametrize(("words", "number", "moment", "twice"), [
    (("train",), signal.SIGINT, 0.5, False), (("lab", "memory"), signal.SIGTERM, 3.0, True),
])
def test_signals(tmp_path, words, number, moment, twice):
    outcome = send(Sent(module="gradring", words=(*words, "--output=out"), number=number, moment=moment, twice=twice),
                   tmp_path / "run")
    assert outcome.wrong == []
    assert outcome.code == 128 + number


def test_a_command_that_ignores_signals(monkeypatch, tmp_path):
    """A command that does not end is killed, and this is reported."""
    monkeypatch.setattr(signals, "ENDS", 0.5)
    monkeypatch.setattr(signals, "SLACK", 0)
    monkeypatch.setattr(signals, "ROOT", tmp_path)
    (tmp_path / "deaf.py").write_text("import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass\n")
    outcome = send(Sent(module="deaf", words=(), number=signal.SIGTERM, moment=0.2), tmp_path / "run")
    assert outcome.wrong[:2] == ["not ended 0.5 s after the signal", "code 137"]
    assert outcome.code == 137
