"""The command of each published system works in a short form, either in this file or in the command's own tests."""

import pytest

from host.make.targets import find_target
from tests.docs.test_systems import ROOT, SYSTEMS, codes, items

GOLDEN = ("--transport", "golden", "--nodes", "2")
TWO = (*GOLDEN, "--steps", "2")

#: Options that shorten the command of a system, and a part of its output that identifies the system.
SHORT = {
    "A1": (TWO, "of raw words"),
    "A3": (TWO, "schedule"),
    "B1": (TWO, "weights per word"),
    "B2": (TWO, "weights per word"),
    "B6": (TWO, "masks"),
    "C1": (TWO, "schedule"),
    "D1": (TWO, "delayed"),
}

#: Other test files that run a system's command in its short form on simulated rings, each with a line that the file
#: must contain.
ELSEWHERE = {
    "A2": ("features/grid/test_command.py", '"--disable"'),
    "A4": ("labs/migrate/test_command.py", 'succeed("lab", "migrate"'),
    "A5": ("features/quantization/test_experiment.py", 'functools.partial(run, "quantize")'),
    "B3": ("labs/centroids/test_lab.py", 'run("lab", "centroids"'),
    "B4": ("features/streaming/test_command.py", '"--schedule", "streaming"'),
    "B5": ("labs/streaming/test_command.py", '"--nodes", "--output"'),
    "B7": ("test_cli.py", 'run("bench"'),
    "C2": ("labs/estimate/test_command.py", '"lab", "estimate"'),
    "C3": ("labs/estimate/test_command.py", '"lab", "estimate"'),
    "C4": ("labs/memory/test_report.py", '["lab", "memory"'),
    "C5": ("features/slots/test_slots.py", '"--links", "slots"'),
    "C6": ("features/compute/test_command.py", '"--activations"'),
    "C7": ("test_interrupted_run.py", '"--overlap", "search"'),
    "D2": ("features/compute/tiling/test_searches.py", "compare("),
    "D3": ("features/quorum/test_command.py", '"--straggler"'),
}


def words_of(name):
    """Words that follow ``gradring`` in the command that make runs for a system."""
    _, target, *values = codes(items(name)["Command"])[0].split()
    values = dict(value.split("=", 1) for value in values)
    command, = find_target(target).mode(values).commands(values)[:1]
    return command[1:]


def test_all_systems_are_run():
    assert sorted([*SHORT, *ELSEWHERE]) == SYSTEMS


@pytest.mark.parametrize("name", SHORT)
def test_short_form(succeed, tmp_path, name):
    options, shown = SHORT[name]
    assert shown in succeed(*words_of(name), *options, "--output", tmp_path)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere(name):
    path, line = ELSEWHERE[name]
    assert line in (ROOT / "tests/host" / path).read_text()
