"""A sample of damaged files of each kind that commands read; ``make damaged-files`` tests 600."""

import ast
import functools
import importlib.util
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from host import archives, stage_times
from host.training import weight_files
from sim import json_files
from tests.damaged import kinds, mutations
from tests.damaged.kinds import KINDS
from tests.damaged.play import play

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files(name):
    """Each file is rejected with a one-line message or is harmless to read, within 1 GB of memory."""
    needs = KINDS[name].needs
    if needs and importlib.util.find_spec(needs.partition(".")[0]) is None:
        pytest.skip(f"{needs} is not installed")
    outcome = play(name, files=20, seed=54)
    assert outcome.wrong == []
    assert outcome.files == outcome.refused + outcome.taken == 20


#: Functions that read files without limits or checks, with the modules that may call them.
UNCHECKED = {
    r"json\.loads?": {"sim/json_files.py",
                      "host/sockets/format.py",  # reads socket messages; their size is limited elsewhere
                      "host/make/targets.py"},  # reads the project's own tables, before any package is installed
    r"(np|numpy)\.(load|fromfile|memmap|loadtxt|genfromtxt|lib\.format\.read_\w+)": set(),
    r"zipfile\.\w+": {"host/archives.py"},
    r"tarfile\.open|shutil\.unpack_archive": set(),
    r"(pickle|marshal|shelve|dill|cloudpickle|yaml|csv|tomllib|configparser)\.(loads?|Unpickler|open|reader|DictReader"
    r"|safe_load|ConfigParser)": {"host/make/targets.py",
                                  "host/run/spec.py"},  # reads a specification of limited size; validates each value
    r"ast\.literal_eval|eval|exec": set(),
    r"torch\.load": set(),
    r"onnx\.load\w*|onnxruntime\.InferenceSession|InferenceSession": {"host/features/quantization/onnx.py"},
    r"\w+\.FromString|ParseFromString": {"host/features/programs/chakra.py"},
    r"pywellen\.\w+|Waveform": {"host/reports/packets.py"},
}


@functools.cache
def calls():
    """Return the names of the functions called in each module of host/, sim/ and boards/."""
    return {str(path.relative_to(ROOT)): {
        ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)}
        for folder in ("host", "sim", "boards") for path in sorted((ROOT / folder).rglob("*.py"))}


def callers(pattern):
    return {path for path, names in calls().items() if any(re.fullmatch(pattern, name) for name in names)}


@pytest.mark.parametrize("pattern", UNCHECKED)
def test_nothing_is_read_without_checks(pattern):
    """Only checked loaders read files; this test finds new readers in host/, sim/ and boards/."""
    assert callers(pattern) <= UNCHECKED[pattern]


def test_products_of_tools_are_read_from_the_cache_only():
    """The unchecked reader is used only for texts written by the project's own tools and processes."""
    assert callers(r"json_files\.(read|parse)_product") == {
        "boards/bitstream.py", "boards/dsp_registers.py", "boards/parts.py", "boards/synth.py",
        "host/features/quantization/command.py", "host/labs/sweep/execution.py", "host/labs/sweep/worker.py",
        "host/pytorch/speed.py",
        "host/training/checkpoint.py", "sim/bench/ring_speed.py", "sim/regression.py", "sim/simulations.py"}


class TestArchives:
    KINDS = {"a": archives.Kind(np.float32, 1), "b": archives.Kind(np.str_)}

    def write(self, path, **arrays):
        np.savez_compressed(path, **arrays)
        return path

    def test_whole(self, tmp_path):
        path = self.write(tmp_path / "a.npz", a=np.arange(5, dtype=np.float32), b=np.array("ä"))
        arrays = archives.read_arrays(path, self.KINDS, largest=1 << 16)
        assert arrays["a"].tolist() == [0, 1, 2, 3, 4]
        assert arrays["b"].item() == "ä"
        arrays["a"][0] = 7  # the returned array is an independent copy

    def test_order_and_empty(self, tmp_path):
        matrix = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
        path = self.write(tmp_path / "a.npz", a=matrix, c=np.zeros(0, np.float32))
        arrays = archives.read_arrays(path, {"a": archives.Kind(np.float32, 2), "c": archives.Kind(np.float32, 1)},
                                      largest=1 << 16)
        np.testing.assert_array_equal(arrays["a"], matrix)
        assert arrays["c"].shape == (0,)

    def test_14_megabytes_that_took_4_gigabytes(self, tmp_path):
        """An array's declared size is checked against the file size before memory is allocated."""
        path = tmp_path / "a.npz"
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1073741824,), }\n"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(14 << 20))
        with pytest.raises(ValueError, match=r"a\.npz must be .*: array a must have the size of its shape"):
            archives.read_arrays(path, self.KINDS, largest=1 << 28)

    @pytest.mark.parametrize(("arrays", "message"), [
        ({"a": np.zeros(5)}, r"Array a must be of type float32, not float64"),
        ({"a": np.zeros((5, 1), np.float32)}, r"Array a must be a vector, not of shape \(5, 1\)"),
        ({"a": np.zeros(100_000, np.float32)}, r"its arrays must be smaller"),
        ({"other": np.zeros(5)}, r"Arrays must have names that gradring writes, not other"),
    ])
    def test_refused(self, tmp_path, arrays, message):
        path = self.write(tmp_path / "a.npz", **arrays)
        with pytest.raises(ValueError, match=rf"a\.npz.*: {message}$"):
            archives.read_arrays(path, self.KINDS, largest=1 << 16)

    def test_object_arrays(self, tmp_path):
        path = tmp_path / "a.npz"
        np.savez(path, a=np.array([{}], object))
        with pytest.raises(ValueError, match=r"a\.npz must be .*: array a must have a type and a shape$"):
            archives.read_arrays(path, self.KINDS, largest=1 << 16)

    def test_bomb(self, tmp_path):
        """Unpacking stops at the size stated in the archive's directory, which is limited as well."""
        rng = np.random.default_rng(0)
        path = tmp_path / "weights.npz"
        kinds.write_weights(path)
        whole = path.read_bytes()
        for _ in range(8):
            path.write_bytes(mutations.archive_bomb(whole, rng))
            with pytest.raises(ValueError, match=r"weights\.npz"):
                weight_files.load(path)


class TestJson:
    @pytest.mark.parametrize(("text", "message"), [
        (b"", "Expecting value"), (b"\xff", "can't decode"), (b"NaN", "must be finite, not NaN"),
        (b"-Infinity", "must be finite"), (b"1e999", "must be finite, not 1e999"), (b"9" * 5000, "at most 128 bits"),
        (b"-340282366920938463463374607431768211456", "at most 128 bits"),
        (b'{"a": 1, "b": 2, "a": 3}', "each key once"), (b"[" * 65 + b"]" * 65, "at most 64 deep"),
        (b"[" * 1_000_000, "at most 64 deep"), (b'"\\ud800"', "surrogates not allowed"),
        (b" " * (1 << 24) + b"1", "at most 16,777,216 bytes"),
    ], ids=range(12))
    def test_refused(self, tmp_path, text, message):
        (tmp_path / "a.json").write_bytes(text)
        with pytest.raises(ValueError, match=rf"a\.json must be JSON, not damaged or another file: .*{message}"):
            json_files.read(tmp_path / "a.json")

    @pytest.mark.parametrize("text", [
        b"1", b'{"a": [1, 2.5, null, true, "\\ud83d\\ude00 [[[ \\" {{{"]}', b"[" * 64 + b"]" * 64,
        b"340282366920938463463374607431768211455"])
    def test_taken(self, tmp_path, text):
        (tmp_path / "a.json").write_bytes(text)
        assert json_files.read(tmp_path / "a.json") == json_files.json.loads(text)

    def test_sealed(self, tmp_path):
        path = tmp_path / "a.json"
        value = {"b": {10: 1, 9: (2, 3)}, "a": 0.1}
        path.write_text(json_files.json.dumps(json_files.sealed(value)))
        assert json_files.read_sealed(path) == {"b": {"10": 1, "9": [2, 3]}, "a": 0.1}
        whole = path.read_text()
        for text in ('{"a": 1}', "[]", whole.replace("0.1", "0.2"), whole.replace('"a"', '"c"')):
            path.write_text(text)
            with pytest.raises(ValueError, match=r"a\.json must have the digest of its content"):
                json_files.read_sealed(path)
        path.write_text(json_files.json.dumps(json_files.sealed({"a": [1.0, float("nan")]}), allow_nan=False))
        assert json_files.read_sealed(path) == {"a": [1.0, None], "not_finite": {"a[1]": "nan"}}


def test_a_cache_of_others_gets_no_times(tmp_path, monkeypatch):
    (tmp_path / "letter.txt").write_text("a user's file")
    monkeypatch.setenv("GRADRING_CACHE", str(tmp_path))
    stage_times.note("compile", 30.0)
    assert stage_times.known("compile") is None
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
