"""Results do not depend on the processor: neither on the BLAS kernel nor on numpy's instruction set."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Digests of runs on data that is the same in every version of Python.
KNOWN = {"momentum": "27dfa52aa2e7fdba", "codebook": "3d1d00f5214acb0e", "density": "267f8c91e325de68",
         "node": "c580a3c4830eec14", "host": "c580a3c4830eec14"}


@functools.cache
def digests(**variables):
    """Return the digests of short runs in a separate process that has the given environment variables."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("OPENBLAS_", "OMP_", "NPY_", "GLIBC_TUNABLES"))}
    ended = subprocess.run([sys.executable, "-m", "tests.host.training.short_runs"], cwd=ROOT, timeout=300,
                           env={**kept, "PYTHONPATH": str(ROOT), **variables}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_known_digests():
    assert digests() == {**KNOWN, "text": digests()["text"]}


@pytest.mark.parametrize("variables", [
    {"OPENBLAS_CORETYPE": "Haswell"}, {"OPENBLAS_CORETYPE": "SkylakeX"}, {"OPENBLAS_CORETYPE": "Sandybridge"},
    {"NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3",
     "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-AVX512VL"},
], ids=lambda variables: " ".join(f"{name}={value}" for name, value in variables.items()))
def test_the_same_as_without(variables):
    assert digests(**variables) == digests()
