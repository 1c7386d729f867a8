import itertools
import re

import numpy as np
import pytest

from host.features.quantization import files
from host.features.quantization.network import QuantizationConfig, infer, quantize
from host.features.quantization.schemes import Extrema, Rounding, Scheme
from tests.host.features.quantization.networks import assert_same, trained

SCALE = 1 / 16


@pytest.fixture
def network():
    data, layers = trained()
    return quantize(layers, data.train_x, QuantizationConfig(per_channel=True), input_scale=SCALE)


@pytest.mark.parametrize(("scheme", "bits", "per_channel"),
                         list(itertools.product(Scheme, (4, 8, (8, 4)), (False, True))))
def test_round_trip(tmp_path, scheme, bits, per_channel):
    data, layers = trained()
    network = quantize(layers, data.train_x, QuantizationConfig(
        scheme=scheme, bits=bits, per_channel=per_channel, rounding=Rounding.TRUNCATE, extrema=Extrema.ALIGNED),
        input_scale=SCALE)
    path = tmp_path / "new" / "model.npz"
    files.save(network, path)
    loaded = files.load(path)
    assert_same(network, loaded)
    if scheme.integer:
        np.testing.assert_array_equal(infer(loaded, data.test_x), infer(network, data.test_x))
    else:
        np.testing.assert_array_equal(loaded.float_scores(data.test_x), network.float_scores(data.test_x))


def test_signed_activations(tmp_path):
    data, layers = trained()
    network = quantize(layers, data.train_x - 0.5, QuantizationConfig())
    assert network.layers[0].input.signed
    files.save(network, tmp_path / "model.npz")
    assert_same(network, files.load(tmp_path / "model.npz"))


class TestErrors:
    @pytest.mark.parametrize(("changes", "message"), [
        ({"schema": np.array("other")}, "Schema must be 'gradring.quantized', not 'other'"),
        ({"version": np.int64(2)}, "Version must be 1, not 2: the file is of another version of gradring"),
        ({"version": np.array("1")}, "Array version must be of type int64, not str32"),
        ({"version": np.ones(2, np.int64)}, "Array version must be one number or text, not of shape (2,)"),
        ({"schema": None}, "Array schema is missing"),
        ({"scheme": np.array("best")},
         "Array scheme must be one of symmetric, float-offset, iaq-min, iaq-max, not 'best'"),
        ({"rounding": np.array("up")}, "Array rounding must be one of nearest, truncate, not 'up'"),
        ({"layers": np.int64(0)}, "Layers must be at least 1, not 0"),
        ({"layers": np.int64(1)}, "Arrays must be those of version 1, without 0.multipliers, 0.output_scale, "
                                  "0.output_signed, 0.shifts, 1.bias, 1.bits, 1.codes, 1.input_scale, "
                                  "1.input_signed, 1.offsets, 1.relu, 1.scales, 1.variant"),
        ({"layers": np.int64(3)}, "Array 1.output_scale is missing"),
        ({"0.codes": None}, "Array 0.codes is missing"),
        ({"1.bias": None}, "Array 1.bias is missing"),
        ({"extra": np.int64(0)}, "Arrays must have names that gradring writes, not extra"),
        ({"0.codes": np.zeros((64, 64))}, "Array 0.codes must be of type uint8, not float64"),
        ({"0.codes": np.zeros(64, np.uint8)},
         "Array 0.codes must be a matrix, not of shape (64,)"),
        ({"0.codes": np.zeros((63, 64), np.uint8)}, "Array 0.offsets must be of shape (63,), not (64,)"),
        ({"1.codes": np.zeros((10, 63), np.uint8)},
         "Input of layer 1 must be what layer 0 puts out, 64 with "),
        ({"1.input_scale": np.float32(1)}, "Input of layer 1 must be what layer 0 puts out, 64 with "),
        ({"0.bits": np.int64(5)}, "Array 0.bits must be 4 or 8, not 5"),
        ({"0.bits": np.int64(4)}, "Array 0.codes must be between 0 and 15, not between 0 and 255"),
        ({"0.variant": np.array("mid")}, "Array 0.variant must be one of min, max, not 'mid'"),
        ({"0.offsets": np.full(64, 300, np.int16)},
         "Array 0.offsets must be between -256 and 255, not between 300 and 300"),
        ({"0.offsets": np.full(64, 255, np.int16)},
         "Adjusted weights of layer 0 must be between -256 and 255, not between 255 and 510"),
        ({"0.multipliers": np.zeros(64, np.uint16)},
         "Array 0.multipliers must be between 1 and 65535, not between 0 and 0"),
        ({"0.shifts": np.full(64, 48, np.uint8)}, "Array 0.shifts must be between 1 and 47, not between 48 and 48"),
        ({"0.scales": np.zeros(64, np.float32)}, "Array 0.scales must be finite, and above 0"),
        ({"0.scales": np.full(64, np.nan, np.float32)}, "Array 0.scales must be finite, and above 0"),
        ({"0.input_scale": np.float32(np.inf)}, "Scale must be a binary32 number above zero, not inf"),
        ({"0.bias": np.full(64, 2**31 - 1, np.int32)},
         "Sum of an output must be between -2147483648 and 2147483647, not "),
    ])
    def test_messages(self, network, tmp_path, changes, message):
        path = tmp_path / "model.npz"
        files.save(network, path)
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        arrays.update(changes)
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
        with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}") as caught:
            files.load(path)
        if not message.endswith((" ", "with ")):
            assert str(caught.value) == f"{path}: {message}"

    @pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
    def test_another_file(self, tmp_path, content):
        path = tmp_path / "model.npz"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))} must be an npz file, not a damaged one"):
            files.load(path)

    def test_objects_are_not_loaded(self, network, tmp_path):
        path = tmp_path / "model.npz"
        np.savez(path, schema=np.array([{}], dtype=object))
        with pytest.raises(ValueError, match="must be an npz file"):
            files.load(path)

    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            files.load(tmp_path / "none.npz")
