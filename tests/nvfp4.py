"""Blocks at all rounding boundaries of NVFP4, for tests of the model and the gateware."""

import numpy as np

#: All fractions of six bits, each with the lower bits zero, one, and all ones.
_FRACTIONS = (np.arange(64, dtype=np.uint32)[:, np.newaxis] << 17 | np.array([0, 1, 0x1_FFFF], np.uint32)).ravel()


def every_place(codec):
    """Return blocks of 16 equal magnitudes, and blocks in which every magnitude occurs with every scale.

    Scale and code change only at magnitudes of at most seven significant bits, so these blocks cover all magnitudes.
    """
    exponents = np.clip(np.arange(codec.power + 127 - 20, codec.power + 127 + 20), 0, 254).astype(np.uint32)
    magnitudes = np.unique(exponents[:, np.newaxis] << 23 | _FRACTIONS).astype(np.int64)
    blocks = [np.repeat(magnitudes[:, np.newaxis], 16, axis=1)]
    scales = codec.quantise(blocks[0].ravel()).exponents
    assert set(scales.tolist()) == set(range(1, 127))
    for scale in range(1, 127):
        largest = magnitudes[scales == scale][-1]
        below = magnitudes[(magnitudes <= largest) & (magnitudes > largest - (12 << 23))]
        padded = np.resize(below, (-(-len(below) // 15), 15))
        signs = np.arange(padded.size).reshape(padded.shape) % 2 << 31
        blocks.append(np.insert(padded | signs, 0, largest, axis=1))
    return np.concatenate(blocks).astype(np.uint32)
