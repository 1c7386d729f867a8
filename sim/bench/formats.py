"""Time of the compiled kernels of every codec, compared with copying the same array in numpy.

``python -m sim.bench.formats`` prints nanoseconds per element of an array of gradients. A hop decodes a received sum,
adds a gradient with its residual, encodes and decodes the new sum, and stores it and the new residual.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.arithmetic import formats

__all__ = ["LENGTH", "fastest", "measure", "rows"]

#: Number of elements in the array, and number of runs, the fastest of which is reported.
LENGTH, RUNS = 1 << 20, 7

Bits = npt.NDArray[np.uint32]


def _codebook(name: str) -> Bits | None:
    """Codebook for a codec: ascending fractions, or numbers distributed like the gradients; None if it needs none."""
    if formats.kernels(name).source.codebook is None:
        return None
    size = formats.kernels(name).codec.codebook_words // 2
    if not formats.kernels(name).source.fixed:
        return np.arange(size, dtype=np.uint32) * np.uint32((1 << 23) // size)
    return np.sort(_gradients(size)).view(np.uint32)


def _gradients(length: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(length).astype(np.float32) * np.float32(1e-3)


def fastest(action: Callable[[], object], length: int) -> float:
    """Nanoseconds per element of the fastest of several runs."""
    seconds = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return 1e9 * min(seconds) / length


def measure(name: str, *, length: int = LENGTH) -> dict[str, float]:
    """Measure a codec in nanoseconds per element: encoding, decoding, a hop (only gradient codecs), and a copy."""
    kernels = formats.kernels(name, _codebook(name))
    x = _gradients(length).view(np.uint32)
    words, result, residual = np.empty(kernels.codec.max_words(length), np.uint32), np.empty_like(x), np.zeros_like(x)
    packet = words[:kernels.encode(x, words)].copy()
    actions: dict[str, Callable[[], object]] = {
        "encode": lambda: kernels.encode(x, words), "decode": lambda: kernels.decode(packet, result),
        "hop": lambda: kernels.hop(x, received=packet, residual=residual, words=words, result=result),
        "copy": lambda: np.copyto(result, x)}
    if not kernels.codec.gradients:
        del actions["hop"]
    return {kernel: fastest(action, length) for kernel, action in actions.items()}


def rows() -> list[dict[str, Any]]:
    """Rows for build/bench/bench.json: time per element of each kernel, compared with the time of a copy."""
    result = []
    for name in formats.names():
        times = measure(name)
        copy = times.pop("copy")
        result += [{"name": f"arithmetic.{kernel}", "config": f"{name}, {LENGTH} elements", "measured": value,
                    "bound": copy, "ratio": value / copy, "unit": "ns/element"} for kernel, value in times.items()]
    return result


def main() -> None:
    print(f"{'ns per element':16}{'encode':>8}{'decode':>8}{'hop':>8}{'copy':>8}")
    for name in formats.names():
        times = measure(name)
        print(f"{name:16}" + "".join(f"{times[kernel]:8.2f}" if kernel in times else f"{'':8}"
                                     for kernel in ("encode", "decode", "hop", "copy")))


if __name__ == "__main__":
    main()
