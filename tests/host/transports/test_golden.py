"""Golden nodes: the same bits and words as gateware, modelled cycles, no independent check, and errors."""

import json

import numpy as np
import pytest

import gradring
import sim.verilated.build
from hdl.config import Memories, NodeConfig
from hdl.control.protocol import Operation
from hdl.features.programs.feature import Programs
from hdl.features.quantization.feature import Quantization
from hdl.features.replay.feature import Replay
from hdl.features.slots.feature import Slots
from hdl.features.streaming.feature import Worker
from hdl.features.tenants.feature import Tenants
from hdl.features.throttles.feature import Throttles
from host.driver.command import Command
from host.driver.errors import BadAddressError, ProgramTooLongError
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import known
from host.reports.page import NO_WITNESS
from host.training import golden_speed as speed
from host.transports.session import TransportName, open_session
from sim.golden import ring as golden
from sim.golden.codecs import CODECS
from tests.host.golden import GoldenRing
from tests.known_answers import compute, runs
from tests.present import needs

NODE = NodeConfig(memories=Memories(gradient=512, weight=512, state=256), programs=Programs())
SUMS = {"rule": Rule.SGD, "gradient_scale": 1.0, "learning_rate": -1.0}


@pytest.fixture(autouse=True)
def no_build(monkeypatch):
    """Make tests fail if they try to build gateware."""
    def build(*arguments, **options):
        raise AssertionError("golden nodes need no build")

    for name in ("build_ring", "toolchain"):
        monkeypatch.setattr(sim.verilated.build, name, build)


@pytest.mark.parametrize("name", ["sim", "layers", "stale", "topology"])
def test_same_bits(program, tmp_path, name):
    """Weights, losses, words and bounds of a run match a Verilated run, and cycles nearly do. The run does not claim
    that its results were compared."""
    words = runs.command(name, tmp_path)
    code, out, err = program(*words, "--transport", "golden")
    assert (code, err) == (0, "")
    report, expected = json.loads((tmp_path / "report.json").read_text()), compute.kept()["runs"][name]
    with np.load(tmp_path / "weights.npz") as archive:
        assert runs._digest(archive["parameters"]) == expected["weights"]
    steps = report["per_step"]
    assert [step["loss"] for step in steps] == expected["losses"]
    for count in ("words_sent", "bound", "scatter_words", "weight_words"):
        assert [step[count] for step in steps] == expected["steps"][count]
    modelled = [step["cycles"] for step in steps]
    if name == "topology":  # nodes with two ports have no model
        assert modelled == [None] * len(steps)
    else:
        assert modelled == pytest.approx(expected["steps"]["cycles"], rel=0.015)
    assert report["bit_exact"] is report["cycles"] is report["host_port"] is None
    assert NO_WITNESS in out
    assert NO_WITNESS in (tmp_path / "report.html").read_text()
    for text in (out, (tmp_path / "report.html").read_text()):
        assert "identical" not in text


@pytest.mark.parametrize(("options", "message"), [
    (["--faults", "0.001"], "--transport golden is for a run without --faults"),
    (["--check"], "--check is for --transport verilated, messages, pysim, board or serial, not golden"),
    (["--no-check"], "--check is for --transport verilated, messages, pysim, board or serial, not golden"),
    (["--board", "icebreaker"], "--transport golden is for a run without --board"),
    (["--overlap", "search"], "--overlap search is for --transport verilated, messages, pysim, board or serial, not"),
    (["--compute", "node", "--tiling", "searched"], "--tiling searched is for --transport verilated, messages, "
                                                    "pysim"),
    (["--threads", "2"], "--threads is for --transport verilated or messages, not golden"),
    (["--processes", "2"], "--processes is for --transport verilated, not golden"),
    (["--arithmetic", "native"], "--arithmetic is for --transport verilated, not golden"),
    (["--host-port"], "--host-port is for --transport verilated, not golden"),
    (["--slow-link", "1:0.5"], "--slow-link is for --transport verilated, not golden"),
    (["--links", "slots"], "--links slots is for --transport verilated, messages or pysim, not golden"),
    (["--straggler", "3:3"], "--transport is for a run without --straggler"),
    (["--links", "slots", "--jobs", "2"], "--transport is for a run without --jobs"),
    (["--workload", "text", "--compute", "node", "--activations", "6144"],
     "--activations is for --transport verilated, not golden"),
    (["--device", "/dev/ttyUSB0"], "--device is for --transport serial, not golden"),
])
def test_refused_options(program, tmp_path, options, message):
    """Options that need gateware or measured cycles are rejected with one line that names both options."""
    code, out, err = program("train", "--transport", "golden", *options, "--output", tmp_path / "out")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: Option {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("node", "options", "message"), [
    ({"link": Replay()}, {}, "Links that repeat words, or slots, must be left out of nodes on transport golden: "),
    ({"link": Slots(), "programs": Programs()}, {}, "Links that repeat words, or slots, must be left out of nodes "),
    ({"role": Worker()}, {}, "Roles of layer streaming must be left out of nodes on transport golden: "),
    ({"features": (Quantization(),)}, {}, "Quantized inference must be left out of nodes on transport golden: "),
    ({"features": (Throttles(),)}, {}, "Throttles must be left out of nodes on transport golden: its nodes have"),
    ({"features": (Tenants(),)}, {}, "Tenants must be left out of nodes on transport golden: its nodes have"),
    ({}, {"threads": 2}, "Transport must be verilated for several threads, not golden"),
    ({}, {"host_port": False}, "Transport must be verilated to bypass the host port, not golden"),
    ({}, {"wave": "wave.fst"}, "Transport must be verilated or messages for a waveform, not golden"),
    ({}, {"far_rate": 0.5}, "Transport must be verilated for a far memory, not golden"),
])
def test_refused_sessions(node, options, message):
    with pytest.raises(ValueError, match=f"^{message}"), open_session(
            NODE.replace(**node), nodes=2, transport=TransportName.GOLDEN, **options):
        pass


def test_flags():
    """A result names the nodes with a NaN in their gradient, and the nodes on which a sum is not finite."""
    ring = GoldenRing(3, config=NODE)
    ring.settings.write(Settings(**SUMS))
    gradients = np.ones((3, 96), np.float32)
    gradients[1, 40] = np.nan  # in block 1, which is owned by node 0 and summed by nodes 1, 2 and 0
    ring.memory.write_gradients(list(gradients))
    outcome = ring.collectives.fused_update(96)
    assert (outcome.local_nan, outcome.not_finite) == ((1,), (0, 2))
    gradients[1, 40] = 1
    gradients[:2, 3] = 3e38  # in block 0, which node 2 owns; the sum of nodes 0 and 1 is infinite
    ring.memory.write_gradients(list(gradients))
    outcome = ring.collectives.fused_update(96)
    assert (outcome.local_nan, outcome.not_finite) == ((), (1, 2))


@pytest.mark.parametrize("name", ["sum32", "sum16"])
def test_sums_of_integers(name):
    """Sums of integers have the same bits and words as on the golden ring. Their cycles are not modelled."""
    needs("reproducible")
    nodes, length = 3, 500
    ring = GoldenRing(nodes, config=NODE.replace(gradients=name))
    gradients = np.random.default_rng(1).standard_normal((nodes, length)).astype(np.float32)
    ring.memory.write_gradients(list(gradients))
    outcome = ring.collectives.all_reduce(length)
    total, traffic = golden.all_reduce(golden.bits(gradients), gradient_codec=CODECS[name], segment=NODE.segment)
    assert outcome.cycles is None
    assert (ring.memory.read_gradients(length).view(np.uint32) == total).all()
    assert [counters["WORDS_SENT"] for counters in ring.counters.read()] == traffic.words.tolist()


def test_cycles():
    """If a command has no cycle model, its cycles are None, and operations that need them raise an error."""
    ring = GoldenRing(2, config=NODE)
    ring.memory.write_gradients(list(np.ones((2, 64), np.float32)))
    ring.memory.write_weights(np.zeros(64, np.float32))
    assert known(ring.collectives.all_reduce(64).cycles) > 64
    outcome = ring.collectives.broadcast(64, root=1)
    assert outcome.cycles is None
    with pytest.raises(ValueError, match=r"^Cycles of the command must be measured, not those of golden nodes"):
        known(outcome.cycles)
    counters = ring.counters.read()
    assert "COMMAND_CYCLES" not in counters[0]
    ring.counters.clear()
    ring.collectives.broadcast(64, root=1)  # one segment, sent on one of two links
    assert [node["WORDS_SENT"] - ((1 << 32) - 1000) for node in ring.counters.read()] == [0, 68]


def test_requests():
    """Golden nodes reject requests for memory that they lack, for programs that are too long, and for kinds of
    packets that they do not support."""
    device = GoldenRing(1, config=NODE).devices[0]
    with pytest.raises(BadAddressError, match=r"^node 0: 2 elements of weight memory from 511 on must be in it; "):
        device.read_memory(1, 511, 2)
    with pytest.raises(ProgramTooLongError, match=r"^node 0: a program of \d+ commands must have at most \d+; "):
        device.load_program(0, [Command(operation=Operation.QUIESCE)] * (NODE.programs.depth + 1))
    with pytest.raises(ValueError, match=r"^Requests to golden nodes must be those of registers, memories, "):
        device.ping(np.zeros(1, np.uint32))


@pytest.mark.parametrize("options", [{}, {"gradients": "mx9", "weights": "mx9"}, {"density": 0.3}])
def test_library(options, monkeypatch):
    """A job of the library needs no compiler, and reports correct sums, updates, words and bounds."""
    monkeypatch.setenv("PATH", "")
    gradients = np.random.default_rng(1).standard_normal((3, 100)).astype(np.float32)
    with gradring.simulate(nodes=3, length=100, optimizer=gradring.SGD(learning_rate=0.1),
                           transport=gradring.TransportName.GOLDEN, **options) as job:
        sums, _ = job.all_reduce(gradients)
        weights, figures = job.step(gradients)
    if not options:
        assert np.allclose(sums, gradients.sum(axis=0), atol=1e-5)
        assert np.allclose(weights, -0.1 * gradients.mean(axis=0), atol=1e-6)
    assert figures.words > figures.bound > 0
    assert (figures.host_cycles, figures.sparsify_cycles) == (None, None if "density" in options else 0)
    with pytest.raises(ValueError, match=r"^Transport of a job's nodes must be verilated or golden, not pysim"):
        gradring.simulate(nodes=3, length=100, transport=gradring.TransportName.PYSIM)


def test_rows_of_speed():
    """The row for speed in `make bench` compares processor time with its limit."""
    row, = speed.rows((0.7, 4.0))
    assert (row["measured"], row["bound"], row["ratio"]) == (0.7, pytest.approx(1.4), pytest.approx(0.5))
    assert "4.00 s on Verilated nodes" in row["config"]
