import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from host import cli
from host.commands import wave
from host.driver.diagnosis import RingError
from host.driver.errors import ConfigurationError
from host.driver.results import Outcome
from host.labs.bench import bench
from host.run import steps
from host.training import weight_files as weights
from host.training.record import DivergenceError
from sim.verilated.ring import VerilatedRing
from sim.verilated.toolchain import ToolError
from tests import mx5
from tests.sim.verilated.modes import hostile
from tests.tensorboard_events import scalars

#: Options for training the text model on nodes with far memory.
FAR = ("--workload", "text", "--compute", "node", "--activations", 6144)


class TestTrain:
    def test_on_the_verilated_ring(self, train, tmp_path):
        out, result = train("--nodes", 3, "--epochs", 2, "--hidden", "none", "--batch", 500, "--threads", 1,
                            "--link-latency", 5)
        assert "epoch   1   loss" in out
        assert ("Weights of all nodes identical to each other and to the golden model, bit for bit, after each of 6 "
                "steps.") in out
        assert "\x1b" not in out
        assert result["bit_exact"] is True
        assert (result["nodes"], result["steps"], result["parameters"]) == (3, 6, 650)
        assert result["training"]["batch"] == 500
        assert result["link_latency"] == 5
        assert result["cycles"] > result["cycles_fused_update"] > result["bound_cycles"] * 0.9
        assert result["simulated_cycles_per_second"] > 1000
        assert set(result["stage_seconds"]) >= {"Verilog", "run"}
        assert (tmp_path / "report.png").stat().st_size > 10_000
        trained = weights.load(tmp_path / "weights.npz")
        assert (trained.workload.value, trained.hidden, trained.parameters.size) == ("digits", (), 650)

    def test_compared_with_sgd(self, train, tmp_path):
        out, result = train("--nodes", 2, "--epochs", 2, "--hidden", "none", "--batch", 500, "--optimizer", "adamw",
                            "--compare", "--weight-decay", 0.1, "--clip", 0.5, "--moments", "bf16", "--tensorboard",
                            tmp_path / "events")
        assert "sgd, for comparison" in out
        assert out.count("epoch   2   loss") == 2
        assert "first epoch with 97%" in out
        trained = result["training"]
        assert (trained["optimizer"], trained["weight_decay"], trained["clip"], trained["moments"]) == (
            "adamw", 0.1, 0.5, "bf16")
        assert set(result["epochs_to_target"]) == {"adamw", "sgd"}
        other = result["comparison"]
        assert result["bit_exact"] is other["bit_exact"] is True
        assert other["training"]["optimizer"] == "sgd"
        for figures, name in ((result, "adamw"), (other, "sgd")):
            events = scalars(tmp_path / "events" / name)
            for tag, column in (("loss/training", "loss"), ("cycles/update", "cycles"), ("words/sent", "words_sent")):
                assert events[tag] == {step["number"]: np.float32(step[column]) for step in figures["per_step"]}
            assert list(events["accuracy/test"].values()) == [np.float32(x) for x in figures["accuracy_per_epoch"]]
        assert "adamw: " in (tmp_path / "report.html").read_text()
        assert [len(curve) for curve in (other["loss_per_epoch"], other["accuracy_per_epoch"])] == [2, 2]
        assert "comparison" in result["stage_seconds"]

    def test_faults(self, succeed, nodes_of, tmp_path):
        """Damaged words are sent again, no step is repeated, and all bits are the same as in a run without faults."""
        nodes_of("wide")
        results, trained = [], []
        for rate in (0, 1e-3):
            out = succeed("train", "--nodes", 3, "--epochs", 3, "--hidden", "none", "--batch", 200, "--weights",
                          "mxfp8_e4m3", "--faults", rate, "--fault-seed", 2, "--threads", 2, "--output", tmp_path)
            results.append(json.loads((tmp_path / "report.json").read_text()))
            trained.append(weights.load(tmp_path / "weights.npz").parameters.tobytes())
            assert "restarts of links" in out
            assert (tmp_path / "report.png").stat().st_size > 10_000
        clean, faulty = results
        assert trained[0] == trained[1]
        assert clean["bit_exact"] is faulty["bit_exact"] is True
        assert clean["retries"] == faulty["retries"] == 0
        assert faulty["faults"] == {"rate": 1e-3, "seed": 2}
        assert faulty["wires_per_link"] == [43, 1]
        names = ("faults_injected", "checks_failed", "link_restarts", "words_repeated")
        assert [clean[name] for name in names] == [0, 0, 0, 0]
        assert 0 < faulty["link_restarts"] <= faulty["words_repeated"]
        assert 0 < faulty["checks_failed"] <= faulty["faults_injected"]
        assert clean["words_sent"] == faulty["words_sent"]
        assert clean["cycles_fused_update"] < faulty["cycles_fused_update"] < 1.3 * clean["cycles_fused_update"]

    @pytest.mark.parametrize(("arguments", "compared"), [
        (["--optimizer", "adam", "--no-compare"], False),
        (["--optimizer", "momentum", "--dampening", 0.1], False),
        (["--optimizer", "nesterov", "--compare"], True),
    ])
    def test_compare(self, run, tmp_path, arguments, compared):
        code, out, _ = run("train", "--nodes", 2, "--epochs", 1, "--hidden", "none", "--batch", 1500,
                           "--output", tmp_path, *arguments)
        assert code == 0
        assert ("sgd, for comparison" in out) is compared
        result = json.loads((tmp_path / "report.json").read_text())
        assert (result["comparison"] is not None) is compared
        assert result["training"]["optimizer"] == arguments[1]

    def test_text(self, train, tmp_path):
        out, result = train("--workload", "text", "--nodes", 2, "--steps", 3, "--interval", 2, "--batch", 8,
                            "--threads", 1)
        assert out.count("bigram model 2.") == 2
        assert "step    2   loss" in out
        assert "It writes: the " in out
        assert "So are all" in out
        assert result["bit_exact"] is True
        assert (result["workload"], result["steps"], result["parameters"]) == ("text", 3, 15_232)
        assert result["measured_at"] == [2, 3]
        assert result["held_out_loss"] < 4.5
        assert result["mask_words_fetched"] == 0
        assert 0 < result["elements_masked"] < result["elements_through"]
        assert (tmp_path / "report.png").stat().st_size > 10_000

    def test_density(self, train):
        out, result = train("--nodes", 3, "--epochs", 2, "--density", 0.1, "--compare", "--batch", 300, "--threads",
                            1)
        assert "dense, for comparison" in out
        other = result["comparison"]
        assert result["bit_exact"] is other["bit_exact"] is True
        assert result["words_scatter_reduce"] < other["words_scatter_reduce"] / 2
        assert result["cycles_sparsify"] >= 10 * 4810 / 4

    def test_weights(self, train, nodes_of):
        nodes_of("mx9")
        out, result = train("--nodes", 2, "--epochs", 1, "--hidden", "none", "--batch", 500, "--weights", "mx9",
                            "--gradients", "mx9", "--threads", 1)
        assert "new weights on the ring" in out
        assert result["bit_exact"] is True
        assert result["configuration"]["weights"]["codec"] == "mx9"
        gathered = result["words_sent"] - result["words_scatter_reduce"]
        # In each step, blocks of 352 and 298 elements (22 and 19 groups of 16) are sent, each in two packets.
        assert gathered == result["steps"] * (72 + 27 + 72 + 14 + 4 * 4)

    def test_gradients(self, train, nodes_of):
        nodes_of("centroid")
        out, result = train("--nodes", 2, "--epochs", 1, "--hidden", "none", "--batch", 500, "--optimizer", "sgd",
                            "--gradients", "raw", "--weights", "centroid16", "--threads", 1)
        assert "gradients on the ring" in out
        assert result["bit_exact"] is True
        assert result["configuration"]["gradients"] == "raw"
        assert result["words_scatter_reduce"] == result["steps"] * (650 + 12 * 4)

    def test_native_arithmetic(self, run, nodes_of, tmp_path, monkeypatch):
        """Weights, cycles and words match the gateware, whatever the mode of the caller's floating-point unit."""
        nodes_of("narrow")
        simulate, trained, results = VerilatedRing.run, [], []

        def simulate_in_other_modes(*arguments, **options):
            with hostile():
                return simulate(*arguments, **options)

        for arithmetic in ("gateware", "native"):
            if arithmetic == "native":
                monkeypatch.setattr(VerilatedRing, "run", simulate_in_other_modes)
            folder = tmp_path / arithmetic
            with mx5.registered():
                code, out, err = run("train", "--nodes", 2, "--epochs", 1, "--hidden", "none", "--batch", 300,
                                     "--optimizer", "nesterov", "--no-compare", "--weights", "bf16", "--gradients",
                                     mx5.NAME, "--threads", 1, "--arithmetic", arithmetic, "--output", folder)
            assert (code, err) == (0, "")
            assert ("floating-point units" in out) is (arithmetic == "native")
            assert "bit for bit, after each of 5 steps" in out
            trained.append(weights.load(folder / "weights.npz").parameters.tobytes())
            results.append(json.loads((folder / "report.json").read_text()))
            assert results[-1]["arithmetic"] == arithmetic
        assert trained[0] == trained[1]
        timed = ("run", "arithmetic", "stage_seconds", "simulated_cycles_per_second")
        gateware, native = ({name: value for name, value in result.items() if name not in timed}
                            for result in results)
        assert gateware == native

    @pytest.mark.parametrize(("arguments", "message"), [
        (["--gradients", "mx7"],
         f"Gradient codec must be one of {', '.join(GRADIENT_CODECS)}, not 'mx7': did you mean mx9 or mx6 or mx4?"),
        (["--weights", "mx7"],
         f"Weight codec must be one of {', '.join(WEIGHT_CODECS)}, not 'mx7': did you mean mx9 or mx6 or mx4?"),
        (["--epochs", 1, "--steps", 2], "Epochs or steps must be given, not both: --epochs 1 and --steps 2"),
        (["--density", 0], "Density must be above 0 and at most 1, not 0.0"),
        (["--workload", "text", "--compare"],
         "Option --compare is for --workload digits, or a run with --density, not text: leave it out"),
        (["--nodes", 0], "Ring must have between 1 and 255 nodes, not 0"),
        (["--nodes", 256], "Ring must have between 1 and 255 nodes, not 256"),
        (["--epochs", 0], "Epochs must be at least 1, not 0"),
        (["--hidden", "a,3"],
         "Widths of hidden layers must be numbers, or a number x a count as in 32x9, of at most 1,000 layers, with "
         "commas between them, not 'a,3'"),
        (["--optimizer", "sgd", "--compare"],
         "Option --compare is for a run with --density, or another --optimizer than sgd: leave it out"),
        (["--optimizer", "adam", "--dampening", 0.5],
         "Option --dampening is for --optimizer momentum, not adam (other rules do not use it): leave it out"),
        (["--chakra", "trace"],
         "Option --chakra is for a run with --overlap (a trace shows a program): leave it out"),
        (["--clip", -1], "Clip must be None or a finite number of 0 or more, not -1.0"),
        (["--weight-decay", -1], "Weight decay must be a finite number from 0 to 3.40282e+38, not -1.0"),
        (["--macs", 4],
         "Option --macs is for a run with --overlap, --straggler or --compute node (no compute engine is used or "
         "modelled): leave it out"),
        (["--compute", "node", "--workload", "text", "--tiling", "searched"],
         "Option --tiling is for --workload digits, not text (the transformer's tiles are fixed by its lists): leave "
         "it out"),
        (["--compute", "node", "--compare"],
         "Option --compare is for a run without --overlap, which --compute implies (overlapping does not change the "
         "results): leave it out"),
        (["--compute", "node", "--board", "ulx3s-85f"],
         "Option --compute node is for --board ulx3s-85f-compute, or a run without --board, not ulx3s-85f (other "
         "boards have no compute engine): leave it out"),
        (["--compute", "node", "--macs", 5],
         "Multiply-adds per cycle of nodes that compute must be one of 4, 8, 16, not 5"),
        (["--compute", "fpga"], "Compute must be host or node, not 'fpga'"),
        (["--overlap", "layers", "--board", "ulx3s-85f"],
         "Option --overlap is for a run without --board (a board's nodes have no room to stage gradients): leave it "
         "out"),
        (("--faults", "1.5"), "Fault rate must be between 0 and 1, not 1.5"),
        (("--faults", "nan"), "Fault rate must be between 0 and 1, not nan"),
        (("--faults", "1e-4", "--fault-seed", "-1"), "Seed of faults must be between 0 and 2^64 - 1, not -1"),
        (("--faults", "1e-4", "--link-latency", "481"), "Link latency must be between 1 and 480, not 481"),
        (("--fault-seed", "3"),
         "Option --fault-seed is for a run with --faults (there are no faults to generate): leave it out"),
        (("--faults", "1e-4", "--board", "icebreaker"),
         "Option --faults is for a run without --board (a board's nodes have a fixed configuration): leave it out"),
        (("--faults", "1e-4", "--transport", "board"),
         "Option --faults is for a run without --board, which --transport implies (a board's nodes have a fixed "
         "configuration): leave it out"),
        (["--overlap", "layers", "--compare"],
         "Option --compare is for a run without --overlap (overlapping does not change the results): leave it out"),
        (["--overlap", "chunks"],
         "Overlap must be one of none, strict, layers, chunks:n, delayed:n, search with n of at least 1, or 0 of "
         "delayed, not 'chunks'"),
        (["--overlap", "layers", "--workload", "text"],
         "Option --overlap is for --workload digits, not text (programs are built from a perceptron's layers): leave "
         "it out"),
        (["--far", "1/4"], "Option --far is for a run with --activations (without it all maps fit): leave it out"),
        (["--memory", "swap"],
         "Option --memory is for a run with --activations (without it all maps fit): leave it out"),
        (["--activations", 6144],
         "Option --activations is for --workload text, not digits (a perceptron's maps always fit): leave it out"),
        ([*FAR, "--transport", "pysim"],
         "Option --activations is for --transport verilated, not pysim (only Verilated nodes have far memories): "
         "leave it out"),
        ([*FAR, "--far", "1/0"], "Rate of far memory must be a number or a fraction, such as 1/4, not '1/0'"),
        ([*FAR, "--far", "2"], "Rate of far memory must be between 1/1024 and 1 words per cycle, not 2"),
        ([*FAR, "--memory", "drop"], "Memory must be one of keep, swap, recompute, mixed, not 'drop'"),
        ([*FAR, "--memory", "keep"], "Activations must be at least 7,776 words for a plan of kind keep, not 6,144"),
        (["--link-latency", 0], "Link latency must be between 1 and 1,000,000, not 0"),
    ])
    def test_errors_in_one_line(self, run, arguments, message):
        assert run("train", *arguments) == (1, "", f"error: {message}\n")

    @pytest.mark.parametrize("error", [
        ToolError("A C++ compiler is needed"), ConfigurationError("node 0: configuration hash must be 1, not 2"),
        RingError("all-reduce failed", cause=None, events=[]), DivergenceError("Step 3: 1 of 2 weights"),
    ])
    def test_expected_errors(self, run, monkeypatch, error):
        @contextlib.contextmanager
        def fail(*arguments, **options):
            raise error
            yield

        monkeypatch.setattr(steps, "open_session", fail)
        assert run("train") == (1, "", f"error: {error}\n")

    def test_unknown_option(self, run):
        code, out, err = run("train", "--wings", 2)
        assert (code, out) == (2, "")
        assert "--wings" in err

    def test_unknown_optimizer(self, run):
        code, _, err = run("train", "--optimizer", "adamant")
        assert code == 2
        for name in ("sgd", "momentum", "nesterov", "adam", "adamw"):
            assert name in err


class TestInfo:
    def test_shows_configuration_versions_and_registers(self, run):
        code, out, _ = run("info")
        assert code == 0
        for part in ("lanes", "hash", "0x", "verilator", "CONFIGURATION_HASH", "PACKETS_REFUSED"):
            assert part in out

    def test_as_a_module(self):
        root = Path(cli.__file__).parents[1]
        result = subprocess.run([sys.executable, "-m", "host.cli", "info"], cwd=root, capture_output=True, text=True,
                                timeout=60, check=True)
        assert result.stdout.startswith("configuration")


class Recorder:
    """Stub of a ring, or of one of its parts or methods, on which every call succeeds."""

    def __init__(self, name="ring", calls=None):
        self._name = name
        self.calls = [] if calls is None else calls

    def __getattr__(self, name):
        return Recorder(f"{self._name}.{name}", self.calls)

    def __call__(self, *arguments, **options):
        self.calls.append(self._name)
        return Outcome(cycles=678)


class TestWave:
    def test_says_how_to_open_it(self, run, monkeypatch, tmp_path):
        class Session:
            cycle = 12_345

            ring = Recorder()

        @contextlib.contextmanager
        def session(config, *, nodes, wave, announce):
            assert (nodes, wave) == (3, tmp_path / "new" / "ring.fst")
            yield Session

        monkeypatch.setattr(wave, "open_session", session)
        code, out, _ = run("wave", "--nodes", 3, "--output", tmp_path / "new" / "ring.fst")
        assert code == 0
        assert "12,345 cycles, of which the last 678 are a fused update" in " ".join(out.split())
        assert f"gtkwave {tmp_path}" in out.replace("\n", "")
        assert Session.ring.calls[-1] == "ring.collectives.fused_update"
        assert (tmp_path / "new").is_dir()


def row(name="ring.all_reduce", config="N=2, dense", ratio=1.0, unit="cycles"):
    return {"name": name, "config": config, "measured": ratio * 1000, "bound": 1000, "ratio": ratio, "unit": unit}


CODED = "N=4, K=16384, dense, weights table32, gradients zero_value"


class TestBench:
    @pytest.mark.parametrize(("changes", "limit"), [
        ({}, 1.05), ({"config": "N=2, sparse 10%"}, 1.10), ({"name": "optimizer burst"}, 1.05),
        ({"unit": "us/cycle"}, float("inf")), ({"unit": "cycles/word"}, float("inf")),
        ({"name": "ring.all_reduce.scatter_reduce"}, float("inf")),
        ({"name": "ring.fused_update", "config": CODED}, 1.25), ({"config": CODED}, float("inf")),
        ({"name": "ring.fused_update.scatter_reduce", "config": CODED}, float("inf")), ({"name": "node.infer"}, 1.05),
    ])
    def test_limits(self, changes, limit):
        assert bench.limit(row(**changes)) == limit
        assert bench.exceeds_limit(row(**changes, ratio=limit + 0.001)) is (limit < 100)
        assert not bench.exceeds_limit(row(**changes, ratio=min(limit, 100)))

    @pytest.mark.parametrize(("ratio", "code"), [(1.04, 0), (1.06, 1)])
    def test_command(self, run, monkeypatch, tmp_path, ratio, code):
        rows = [row(ratio=ratio), row(name="ring.fused_update", config=CODED),
                row(name="simulation.ring", ratio=2.0, unit="us/cycle")]

        def collect(announce):
            announce("ring of 2: compile")
            return rows

        monkeypatch.setattr(bench, "collect", collect)
        status, out, _ = run("bench", "--output", tmp_path)
        assert status == code
        assert out.startswith("ring of 2: compile …\n")
        assert all(name in out for name in rows[0] if name != "config")
        assert all(part in out for part in CODED.split())
        assert max(map(len, out.splitlines())) <= 80
        assert ("missed: ring.all_reduce (N=2, dense)" in out) is bool(code)
        assert json.loads((tmp_path / "bench.json").read_text()) ["rows"] == rows

    @pytest.mark.parametrize("density", [1.0, 0.1])
    def test_gradients(self, density):
        values = bench.gradients(4, density)
        assert values.shape == (4, bench.LENGTH)
        assert (np.count_nonzero(values, axis=1) == round(density * bench.LENGTH)).all()
        assert (np.count_nonzero(values.any(axis=0))) == round(density * bench.LENGTH)
