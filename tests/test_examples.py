"""The examples run as their docstrings and docs/examples.md describe."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from host.documents import ROOT
from host.reports.packets import Wave, read_packets
from host.training.optimizers import SGD
from sim.golden import ring as golden

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text()


def run(tmp_path, *command):
    ended = subprocess.run([sys.executable, *map(str, command)], cwd=tmp_path, capture_output=True, text=True,
                           timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_all_are_tested():
    source = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'EXAMPLES / "{path.name}"' in source
        assert f"examples/{path.name}" in PAGE


def test_numpy_model(tmp_path):
    """The numpy model learns, and prints the numbers that the quick start shows."""
    printed = run(tmp_path, EXAMPLES / "numpy_model.py", "zero_value")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed)]
    assert losses[0] > 2
    assert losses[-1] < 0.25
    cycles, words = re.findall(r" (\S+) cycles .*, (\S+)% of raw ones", printed)[-1]
    assert f"| `zero_value` | {losses[-1]:.4f} | {cycles} | {words} % |" in (ROOT / "docs/quick-start.md").read_text()


def test_pytorch(tmp_path):
    pytest.importorskip("torch")
    printed = run(tmp_path, "-m", "gradring", "launch", "-n", 2, "--output", tmp_path, EXAMPLES / "pytorch_ddp.py")
    losses = [float(loss) for loss in re.findall(r"loss of rank 0 (\S+)", printed)]
    assert len(losses) == 2
    assert max(losses) < 1  # initially, the loss is 2.3


def rows(printed):
    """Rows of the table that own_data.py prints, by codec and density."""
    _, _, table = printed.partition("\ngradients ")
    return {tuple(line.split()[:2]): line.split()[2:] for line in table.splitlines()[1:]}


def test_own_data(tmp_path):
    """With its own data, the example prints the table rows that the page shows, and a lower density reduces the
    number of words."""
    printed = run(tmp_path, EXAMPLES / "own_data.py", "--gradients", "zero_value", "--density", "1,0.1")
    assert "build/examples/patients.csv: 442 rows, 10 inputs, a quantity; 289 parameters on 4 nodes\n" in printed
    table = rows(printed)
    assert list(table) == [("zero_value", "100%"), ("zero_value", "10%")]
    for values in table.values():
        assert float(values[0]) < 0.7  # the variance of the outputs is 1
    dense, sparse = (int(values[3].replace(",", "")) for values in table.values())
    assert sparse < dense
    for line in printed.splitlines():
        if line.startswith("zero_value"):
            assert line in PAGE


def test_own_data_of_another_kind(tmp_path):
    """A user's own file with classes is used for training, and a missing column is reported."""
    generator = np.random.default_rng(3)
    with (tmp_path / "own.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "x", "y", "nothing"])
        for _ in range(200):
            kind = int(generator.integers(3))
            point = generator.standard_normal(2) + np.array([3, -1]) * kind
            writer.writerow([2 * kind, *point.tolist(), 7])
    printed = run(tmp_path, EXAMPLES / "own_data.py", "own.csv", "kind", "--gradients", "zero_value", "--steps", 40)
    assert "own.csv: 200 rows, 3 inputs, 3 classes; 171 parameters on 4 nodes\n" in printed
    ((loss, unseen, *_),) = rows(printed).values()
    assert max(float(loss), float(unseen)) < 0.5  # without training, the loss is 1.1
    ended = subprocess.run([sys.executable, EXAMPLES / "own_data.py", "own.csv", "none"], cwd=tmp_path, text=True,
                           capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "own.csv has no column none, only kind, x, y, nothing\n")


EQUAL = r"all words equal to numpy's, bit for bit"


def test_amaranth_design(tmp_path):
    printed = run(tmp_path, EXAMPLES / "amaranth_design.py")
    assert re.search(rf"^4 vectors for each threshold: {EQUAL}$", printed, re.MULTILINE)
    kept, words = zip(*re.findall(r"^ +[\d.]+ +(\d+) +(\d+),", printed, re.MULTILINE), strict=True)
    # The words include one mask for every 32 elements of the vector.
    assert [int(total) - int(count) for total, count in zip(words, kept, strict=True)] == [1 + 1 + 4 + 11] * 3
    assert printed.splitlines()[:4] == block("python examples/amaranth_design.py")[:4]
    text = (tmp_path / "build" / "examples" / "sparsifier.v").read_text()
    assert "module sparsifier (" in text
    assert "s_axis_i_tvalid" in text


def test_verilog_design(tmp_path):
    printed = run(tmp_path, EXAMPLES / "verilog_design.py")
    assert re.search(rf"^50 vectors for each threshold: {EQUAL}$", printed, re.MULTILINE)
    assert printed.splitlines()[1:5] == block("python examples/verilog_design.py")[1:5]
    unit = (ROOT / "build" / "verilog" / "compression.zero_value.encoder.v").read_text()
    assert "module gradring_compression_zero_value_encoder (" in unit


def block(command):
    """Lines of output that the page shows for a command."""
    text = re.search(rf"^    \$ {re.escape(command)}\n((?:    .*\n)+)", PAGE, re.MULTILINE)[1]
    return [line.removeprefix("    ") for line in text.splitlines()]


NODES, LENGTH, SEGMENT = 4, 1024, 256


def golden_packets():
    """Golden packets of the fused update in the waveform, by link, codec, block and segment."""
    generator = np.random.default_rng(0)
    gradients = generator.standard_normal((NODES, LENGTH)).astype(np.float32)
    gradients[generator.random((NODES, LENGTH)) < 0.5] = 0
    weights = np.zeros(LENGTH, dtype=np.float32)
    expected = {}
    for block_, segments in enumerate(golden.segment_indices(LENGTH, NODES, SEGMENT)):
        for segment, places in enumerate(segments):
            total = gradients[block_, places]
            for hop in range(NODES - 1):
                sender = (block_ + hop) % NODES
                expected[sender, "zero_value", block_, segment] = total
                total = total + gradients[(sender + 1) % NODES, places]
            weights[places] -= np.float32(0.1) * (total * np.float32(1 / NODES))
            for hop in range(NODES - 1):
                expected[(block_ - 1 + hop) % NODES, "raw", block_, segment] = weights[places]
    return expected


def test_waveform(tmp_path):
    """The waveform and its text contain every packet of a fused update, as the page shows."""
    wave = tmp_path / "wave" / "ring.fst"
    run(tmp_path, "-m", "gradring", "wave", "--nodes", NODES, "--output", wave)
    printed = run(tmp_path, "-m", "gradring", "packets", wave)
    expected = golden_packets()
    seen = read_packets(Wave(wave))
    assert len(seen) == len(expected) == 24
    for packet in seen:
        header = packet.header
        key = packet.link[0], packet.codec, header.block, header.segment
        np.testing.assert_array_equal(packet.elements, expected.pop(key) + 0)
        assert (packet.type, packet.crc, header.source, header.destination) == ("DATA", "right", *packet.link)
    assert not expected
    for node in range(NODES):
        sequences = [packet.header.sequence for packet in seen if packet.link[0] == node]
        assert sequences == list(range(sequences[0], sequences[0] + 6))
    # Packets are sent without pauses as soon as all their words are available, as the page says about these lines.
    lines = printed.splitlines()
    assert len(lines) == 1 + 24 + 2
    for line in block("gradring packets"):
        assert line == "…" or line in lines or "build/wave" in line
    assert SGD(learning_rate=0.1).planes == 0

    plain = Wave(wave.with_suffix(".packets.vcd"))
    first = seen[0]
    assert first.link == (0, 1)
    words = dict(zip(first.cycles, first.words, strict=True))

    def at(name, cycle):
        return [value for time, value in plain.changes(name) if time <= 10 * cycle][-1]

    shown = re.findall(r"^\| (\d+) \| `([0-9A-F]{8})` \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert [int(shown[0][0]), int(shown[-1][0])] == [first.cycles[0], first.cycles[-1]]
    for cycle, word, meaning in shown:
        assert words[int(cycle)] == at("link0to1.data", int(cycle)) == int(word, 16)
        assert meaning == at("link0to1.word", int(cycle))
    assert f"`element` shows {at('link0to1.element', int(shown[4][0])):.7g}" in PAGE
    save = wave.with_suffix(".packets.gtkw").read_text()
    traces = re.findall(r"^(?:\+\{.*\} )?((?:link|node)[^\s\[]+)(?:\[31:0\])?$", save, re.MULTILINE)
    assert len(traces) > 50
    for name in traces:
        assert name in plain, name
    states = re.findall(r"^\| `(node\S+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(states) == 4
    for name, values in states:
        assert set(re.findall(r"`(\w+)`", values)) <= {value for _, value in plain.changes(name)}
    run_at, report_at = (time for time, value in plain.changes("node0.engine.control.fsm_state")
                         if value in ("Plan", "Report"))
    assert f"edge of time {run_at}, plans it, and runs until {report_at}" in PAGE
