import itertools
import re

import numpy as np
import pytest

from host.features.quantization.network import FloatLayer, QuantizationConfig, infer, quantize
from host.features.quantization.onnx import compare_answers, export_onnx, import_onnx, run_onnx
from host.features.quantization.schemes import Extrema, Rounding, Scheme
from tests.host.features.quantization.networks import assert_same, trained
from tests.refusals import refuses

onnx = pytest.importorskip("onnx", reason="ONNX is not installed: run `make .venv/.onnx` for exports and imports")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: run `make .venv/.onnx` for its answers")

SCALE = 1 / 16
INTEGER = [scheme for scheme in Scheme if scheme.integer]


@pytest.mark.parametrize(("scheme", "bits", "per_channel"),
                         list(itertools.product(INTEGER, (4, 8, (8, 4)), (False, True))))
def test_onnxruntime_answers_as_the_integers_do(tmp_path, scheme, bits, per_channel):
    """onnxruntime multiplies by a binary32 scale and rounds ties to even, so it may round hidden activations midway
    between two steps differently. Scores may then differ by one step of a few activations."""
    data, layers = trained()
    network = quantize(layers, data.train_x, QuantizationConfig(
        scheme=scheme, bits=bits, per_channel=per_channel), input_scale=SCALE)
    path = tmp_path / "new" / "model.onnx"
    export_onnx(network, path)
    answers, sums = run_onnx(path, data.test_x), infer(network, data.test_x)
    scores = network.scores(sums)
    np.testing.assert_array_equal(answers.argmax(axis=1), scores.argmax(axis=1))
    off = np.abs(answers - scores) / network.layers[-1].units
    assert off.max() < 2.01 * np.abs(network.layers[-1].weights.adjusted).max()
    assert (off < 0.02).mean() > 0.95
    # Scores can only differ by sums of products, each of which is either complete or missing.
    assert np.abs(off - np.rint(off)).max() < 0.02

    imported = import_onnx(path)
    assert_same(network, imported)
    np.testing.assert_array_equal(infer(imported, data.test_x), sums)


def test_answers_are_compared_by_their_integer_scores():
    """A class chosen by another runtime may be equal, tied in integer score, within one adjusted weight of the top
    score, or wrong."""
    data, layers = trained()
    network = quantize(layers, data.train_x, QuantizationConfig(bits=4), input_scale=SCALE)
    most = int(np.abs(network.layers[-1].weights.adjusted).max())
    sums = np.zeros((5, 10), np.int64)
    sums[:, 3] = 1000
    sums[1, 7] = 1000
    sums[2, 7], sums[3, 7] = 1000 - most, 999 - most
    answers = np.zeros((5, 10), np.float32)
    answers[0, 3] = answers[1:4, 7] = answers[4, 0] = 1
    agreement = compare_answers(network, sums, answers)
    assert (agreement.equal, agreement.tied, agreement.within, agreement.wrong.tolist()) == (1, 1, 1, [3, 4])
    assert str(agreement) == ("1 equal, 1 of another output with the same integer score, 1 within one adjusted "
                              "weight of the largest")


def test_ties_do_not_refuse_an_export(tmp_path):
    """If outputs add equal numbers in different orders, their integer sums may tie although their binary32 sums do
    not."""
    generator = np.random.default_rng(5)
    first = np.tile(generator.standard_normal((1, 6)).astype(np.float32), (8, 1))
    weights = generator.standard_normal(8).astype(np.float32)
    last = np.stack([generator.permutation(weights) for _ in range(10)])
    layers = [FloatLayer(first, np.full(8, 0.3, np.float32)), FloatLayer(last, np.zeros(10, np.float32))]
    x = (generator.integers(0, 16, (200, 6)) / 16).astype(np.float32)
    network = quantize(layers, x, QuantizationConfig(bits=4), input_scale=SCALE)
    export_onnx(network, tmp_path / "model.onnx")
    answers, sums = run_onnx(tmp_path / "model.onnx", x), infer(network, x)
    assert (answers.argmax(axis=1) != sums.argmax(axis=1)).any()
    agreement = compare_answers(network, sums, answers)
    assert agreement.tied > 0
    assert agreement.wrong.size == 0


def test_signed_activations_and_other_settings(tmp_path):
    data, layers = trained()
    network = quantize(layers, data.train_x - 0.5, QuantizationConfig(
        scheme=Scheme.IAQ_MAX, rounding=Rounding.TRUNCATE, extrema=Extrema.ALIGNED))
    export_onnx(network, tmp_path / "model.onnx")
    assert_same(network, import_onnx(tmp_path / "model.onnx"))


@pytest.mark.parametrize(("scheme", "taken"), [
    (Scheme.SYMMETRIC, Scheme.SYMMETRIC), (Scheme.IAQ_MIN, Scheme.IAQ_MIN), (Scheme.IAQ_MAX, Scheme.IAQ_MIN)])
def test_without_properties(tmp_path, scheme, taken):
    data, layers = trained()
    network = quantize(layers, data.train_x, QuantizationConfig(scheme=scheme), input_scale=SCALE)
    path = tmp_path / "model.onnx"
    export_onnx(network, path)
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    imported = import_onnx(path)
    assert imported.scheme is taken
    np.testing.assert_array_equal(infer(imported, data.test_x), infer(network, data.test_x))
    for layer, other in zip(network.layers, imported.layers, strict=True):
        np.testing.assert_array_equal(layer.weights.adjusted, other.weights.adjusted)


class TestErrors:
    def test_a_float_offset(self, tmp_path):
        data, layers = trained()
        network = quantize(layers, data.train_x, QuantizationConfig(scheme=Scheme.FLOAT_OFFSET))
        with pytest.raises(ValueError, match=r"^Scheme must be one with an integer offset for ONNX, not float-off"):
            export_onnx(network, tmp_path / "model.onnx")

    @pytest.mark.parametrize("scheme", [Scheme.IAQ_MIN, Scheme.IAQ_MAX])
    def test_zero_is_no_level(self, tmp_path, scheme):
        """An offset has one bit more than an ONNX zero point, so some offsets cannot be exported."""
        layers = [FloatLayer(np.array([[-256.0, -1.0]]), np.zeros(1))]
        network = quantize(layers, np.ones((1, 2)), QuantizationConfig(scheme=scheme, extrema=Extrema.WEIGHTS))
        assert network.layers[0].weights.adjusted.tolist() == [[-256, -1]]
        refuses("Zero points of layer 0 must be between 0 and 255, not between 256 and 256: take extrema with zero",
                export_onnx, network, tmp_path / "model.onnx")

    @pytest.mark.parametrize(("change", "message"), [
        (lambda model: model.graph.node[4].attribute.pop(), "Gemm of layer 0 must have transB = 1 and nothing else"),
        (lambda model: model.graph.node[0].CopyFrom(onnx.helper.make_node("Identity", ["x"], ["input_codes"])),
         "Behind 'x' must be one QuantizeLinear, not Identity"),
        (lambda model: setattr(model.graph.node[5], "op_type", "Sigmoid"),
         "Behind 'layer0_sum' must be one QuantizeLinear, not Sigmoid"),
        (lambda model: model.metadata_props.add(key="rounding", value="up") and None,
         "Property rounding must be one of nearest, truncate, not 'up'"),
        (lambda model: _replace(onnx, model, "input_zero", np.array(3, np.uint8)),
         "Zero point of activations must be a 0 of 8 bits, not 3 of uint8"),
        (lambda model: _replace(onnx, model, "layer0_bias_scale", np.array(1, np.float32)),
         "Scale of the bias of layer 0 must be that of its sums, "),
        (lambda model: _replace(onnx, model, "layer0_weight_scale", np.array(-1, np.float32)),
         "Scales of layer 0 must be finite, and above 0"),
    ])
    def test_graphs_of_another_form(self, tmp_path, change, message):
        data, layers = trained()
        network = quantize(layers, data.train_x, QuantizationConfig(), input_scale=SCALE)
        path = tmp_path / "model.onnx"
        export_onnx(network, path)
        model = onnx.load(path)
        if message.startswith("Property"):
            del model.metadata_props[:]
        change(model)
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            import_onnx(path)
        assert str(caught.value).startswith(f"{path}")

    def test_another_file(self, tmp_path):
        path = tmp_path / "model.onnx"
        path.write_bytes(b"no model at all")
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))} must be an ONNX model, not a damaged one"):
            import_onnx(path)


def _replace(onnx, model, name, values):
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
