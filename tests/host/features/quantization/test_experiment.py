import contextlib
import dataclasses
import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest

from host.features.quantization import command, files
from host.features.quantization import experiment as quantize
from host.features.quantization.experiment import candidates
from host.features.quantization.network import QuantizationConfig, activations
from host.training import weight_files as weights
from host.training.record import DivergenceError
from host.training.weight_files import TrainedWeights
from host.training.workloads import WorkloadName
from tests.host.features.quantization.networks import GoldenRing, trained
from tests.refusals import refuses


class TestReport:
    def test_rows(self, report):
        assert len(report["rows"]) == 48
        for row in report["rows"]:
            assert row["bound_met"] is True
            assert row["error_in_steps"] < 1
            assert row["products"] == 4736
            integer = row["scheme"] != "float-offset"
            assert row["bit_exact"] is (True if integer else None)
            assert row["cycles"] == (300 if integer else None)
            assert (row["requantizations"], row["float_multiplications"]) == ((64, 0) if integer else (0, 148))
            assert row["requantization_error"] is None or row["requantization_error"] <= 2.0**-16
            assert 0.6 < row["accuracy"] <= 1
            assert row["accuracy_float"] == report["accuracy_float"] > 0.96

    def test_eight_bits(self, report):
        for row in report["rows"]:
            if row["bits"] == 8 and row["rounding"] == "nearest":
                assert abs(row["accuracy"] - row["accuracy_float"]) < 0.003

    def test_iaq_is_ahead_on_the_skewed_layer(self, report):
        rows = {(row["scheme"], row["scale"]): row for row in report["rows"] if row["network"] == "skewed"}
        assert all(row["bits_per_layer"] == [8, 4] for row in rows.values())
        for scale in ("layer", "output"):
            for scheme in ("iaq-min", "iaq-max"):
                row, symmetric = rows[scheme, scale], rows["symmetric", scale]
                assert row["weights_db"][1] > symmetric["weights_db"][1] + 5
                assert row["scores_db"] > symmetric["scores_db"] + 3
                assert row["accuracy"] >= symmetric["accuracy"]
        assert rows["iaq-min", "output"]["accuracy"] > rows["symmetric", "output"]["accuracy"]

    def test_files(self, report, tmp_path):
        _, (text, picture) = quantize.write(report, tmp_path / "new")
        assert json.loads(text.read_text())["rows"] == report["rows"]
        assert picture.stat().st_size > 50_000


def test_a_wrong_sum_is_named():
    data, layers = trained()
    candidate = candidates(2)[0]
    with pytest.raises(DivergenceError, match=r"^Inference: 1 of 3600 sums differ from the golden model, first "
                                              r"example 359, output 3, which is -?\d+ and must be -?\d+$"):
        quantize.measure(candidate, layers, data, GoldenRing(wrong=(359, 3)))


class TestWeights:
    @pytest.fixture
    def build(self, monkeypatch, tmp_path):
        monkeypatch.setattr(quantize, "BUILD", tmp_path)
        return tmp_path

    def saved(self, path, workload=WorkloadName.DIGITS):
        weights.save(TrainedWeights(workload=workload, hidden=(64,), seed=0,
                                    parameters=np.zeros(4810, np.float32)), path)
        return path

    def test_none(self, build):
        assert quantize.find_weights(None, build / "quantize") == (build / "quantize" / "weights.npz", None)

    def test_those_of_training_come_first(self, build):
        own = self.saved(build / "quantize" / "weights.npz")
        assert quantize.find_weights(None, build / "quantize")[0] == own
        text = self.saved(build / "sim" / "weights.npz", WorkloadName.TEXT)
        assert quantize.find_weights(None, build / "quantize")[0] == own
        self.saved(text)
        path, loaded = quantize.find_weights(None, build / "quantize")
        assert path == text
        assert loaded.hidden == (64,)

    def test_those_given(self, build):
        path = self.saved(build / "mine.npz")
        self.saved(build / "sim" / "weights.npz")
        assert quantize.find_weights(path, build)[0] == path
        self.saved(path, WorkloadName.TEXT)
        refuses(f"{path} must have weights of digits, not of text", quantize.find_weights, path, build)

    def test_layers(self):
        data, _ = trained()
        parameters = np.arange(4810, dtype=np.float32)
        layers = quantize.layers_of(TrainedWeights(workload=WorkloadName.DIGITS, hidden=(64,), seed=0,
                                                   parameters=parameters), data)
        assert [layer.weights.shape for layer in layers] == [(64, 64), (10, 64)]
        assert layers[0].weights[0, 1] == 1
        refuses("Parameters of a perceptron with hidden layers (32,) must be 2,410, not 4,810", quantize.layers_of,
                TrainedWeights(workload=WorkloadName.DIGITS, hidden=(32,), seed=0, parameters=parameters), data)


class TestExport:
    def test_npz(self, tmp_path):
        data, layers = trained()
        paths, agreement = quantize.export(layers, data, QuantizationConfig(bits=4), tmp_path / "new")
        assert agreement is None
        assert paths == [tmp_path / "new" / "model.npz"]
        assert files.load(paths[0]).layers[0].weights.bits == 4

    def test_onnx(self, tmp_path, monkeypatch):
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: run `make .venv/.onnx`")
        from host.features.quantization import onnx

        data, layers = trained()
        paths, agreement = quantize.export(layers, data, QuantizationConfig(), tmp_path, onnx=True)
        assert agreement.equal == 360
        assert [path.name for path in paths] == ["model.npz", "model.onnx"]
        monkeypatch.setattr(onnx, "run_onnx", lambda path, x: -activations(layers, x)[-1])
        with pytest.raises(DivergenceError, match=r"model.onnx: the integer score of onnxruntime's answer must be "
                                                  r"the largest, or at most one adjusted weight below it, and is not "
                                                  r"for \d+ of 360 test images, first number 0$"):
            quantize.export(layers, data, QuantizationConfig(), tmp_path, onnx=True)

    def test_without_the_packages(self, monkeypatch):
        monkeypatch.setattr(quantize.importlib.util, "find_spec", lambda name: None)
        refuses("onnx and onnxruntime must be installed for ONNX: run `make .venv/.onnx`", quantize.check_onnx)


@pytest.fixture
def run(run):
    """Run the command; return its exit code, standard output without the first stage line, and standard error."""
    return functools.partial(run, "quantize")


@pytest.fixture
def few(monkeypatch):
    """Reduce the candidates to those of the skewed network, and to IAQ with 8 and 4 bits for the trained network."""
    every = candidates(2)
    chosen = [item for item in every if item.network == "skewed" or (item.config.rounding.value == "nearest" and
                                                                     item.label == "iaq-min")]
    monkeypatch.setattr(command, "candidates", lambda layers, base: chosen)
    return chosen


def scaled(layers, factor):
    return [dataclasses.replace(layer, weights=np.float32(factor) * layer.weights) for layer in layers]


class TestLargeWeights:
    """Large weights are rejected if they lead to scores that are not finite, even though they are finite
    themselves."""

    def test_refused(self):
        data, layers = trained()
        chosen = candidates(2)
        for factor in (1, 1e17, 1e18):
            quantize.check_layers(scaled(layers, factor), data, chosen)
        for factor in (2e18, 1e30):
            refuses("Layer 2 of 2 must have finite outputs, not ones beyond the range of binary32: take other "
                    "weights, or train with --train", quantize.check_layers, scaled(layers, factor), data, chosen)
        with pytest.raises(ValueError, match=r"^Layer 1 of 2: Sum of an output must be between "):
            quantize.check_layers(scaled(layers, 1e-20), data, chosen)

    def test_before_anything_is_built(self, run, monkeypatch, tmp_path):
        """The command ends before anything is built, with a one-line message and an unchanged folder."""
        monkeypatch.setattr(command, "open_session", None)
        _, layers = trained()
        parameters = np.concatenate([part.ravel() for layer in scaled(layers, 1e30)
                                     for part in (layer.weights, layer.biases)])
        weights.save(weights.TrainedWeights(workload=WorkloadName.DIGITS, hidden=(64,), seed=0,
                                            parameters=parameters), tmp_path / "given.npz")
        (tmp_path / "report.json").write_text("of the run before")
        code, out, err = run("--weights", tmp_path / "given.npz", "--output", tmp_path)
        assert (code, out) == (1, "")
        assert err == ("error: Layer 2 of 2 must have finite outputs, not ones beyond the range of binary32: take "
                       "other weights, or train with --train\n")
        assert (tmp_path / "report.json").read_text() == "of the run before"

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
    def test_report(self, report, value, tmp_path):
        """If a candidate's quality is not finite, the report gives null, and the picture has no bar for it."""
        rows = [{**row, "scores_db": value if row["network"] == "skewed" and row["scheme"] == "symmetric" else
                 row["scores_db"]} for row in report["rows"]]
        quantize.write({**report, "rows": rows}, tmp_path)
        written = json.loads((tmp_path / "report.json").read_text())
        assert {row["scores_db"] for row in written["rows"] if row["network"] == "skewed" and
                row["scheme"] == "symmetric"} == {None}
        assert ("not_finite" in written) is (value is not None)
        assert (tmp_path / "report.png").stat().st_size > 10_000


class TestCommand:
    def test_on_the_verilated_ring(self, succeed, few, nodes_of, tmp_path):
        nodes_of("engines")
        _, layers = trained()
        parameters = np.concatenate([part.ravel() for layer in layers for part in (layer.weights, layer.biases)])
        weights.save(weights.TrainedWeights(workload=WorkloadName.DIGITS, hidden=(64,), seed=0,
                                            parameters=parameters), tmp_path / "given.npz")
        out = succeed("--weights", tmp_path / "given.npz", "--nodes", 2, "--bits", 4, "--per-output", "--scheme",
                      "iaq-max", "--output", tmp_path / "new")
        compared = 360 * sum(candidate.config.scheme.integer for candidate in few)
        assert f"Scores of all {compared:,} inferences on 2 nodes identical to the golden model, bit for bit." in out
        assert "8+4, output, skewed" in out
        result = json.loads((tmp_path / "new" / "report.json").read_text())
        assert len(result["rows"]) == len(few)
        assert result["accuracy_float"] > 0.96
        # Each of the 74 outputs takes four beats of 16 products. In addition, there is the latency of the first beat.
        assert all(row["cycles"] is None or 296 < row["cycles"] < 320 for row in result["rows"])
        assert {"kind": "quantization"} in result["configuration"]["features"]
        assert set(result["stage_seconds"]) >= {"quantize"}
        assert (tmp_path / "new" / "report.png").stat().st_size > 10_000
        model = files.load(tmp_path / "new" / "model.npz")
        assert (model.scheme.value, model.layers[0].weights.bits) == ("iaq-max", 4)
        assert len(set(model.layers[0].weights.scales)) > 1

    def test_trains_where_there_are_no_weights(self, succeed, few, monkeypatch, tmp_path):
        @contextlib.contextmanager
        def session(config, **options):
            assert config.has("quantization")
            yield SimpleNamespace(ring=GoldenRing(), build_seconds={})

        def train(ring, task, config, *, on_step):
            task.initialize(config.seed)

        monkeypatch.setattr(command, "open_session", session)
        monkeypatch.setattr(command, "train", train)
        out = succeed("--train", "--seed", 3, "--onnx", "--output", tmp_path)
        assert "Answers of onnxruntime to 360 test images: " in out
        trained = weights.load(tmp_path / "weights.npz")
        assert (trained.seed, trained.hidden, trained.parameters.size) == (3, (64,), 4810)
        assert (tmp_path / "model.onnx").exists()

    @pytest.mark.parametrize(("arguments", "message"), [
        (["--scheme", "best"], "Scheme must be one of symmetric, float-offset, iaq-min, iaq-max, not 'best'"),
        (["--bits", 5], "Bits must be 4 or 8, not 5"),
        (["--calibration", "percentile", "--percentile", 0], "Percentile must be above 0 and at most 100, not 0.0"),
        (["--weights", "/no/such.npz"], "[Errno 2] No such file or directory: '/no/such.npz'"),
        (["--train", "--nodes", 17], "Ring must have between 1 and 16 nodes, not 17"),
    ])
    def test_errors_in_one_line(self, run, arguments, message):
        assert run(*arguments) == (1, "", f"error: {message}\n")
