"""Kernels of NVFP4 with tensor scales other than 1."""

import pytest

from sim.arithmetic.features.nvfp4.kernel import source
from sim.arithmetic.formats import Kernels
from sim.golden.codecs import FixedCodec
from sim.golden.features.nvfp4.nvfp4 import NVFP4
from tests.nvfp4 import every_place
from tests.sim.arithmetic.samples import decoded, same
from tests.words import random_words


@pytest.mark.parametrize("power", [-115, -10, 116])
def test_tensor_scales(power):
    codec = FixedCodec(code=0, format=NVFP4(tensor_scale=2.0 ** power))
    kernels = Kernels(codec, source(codec))
    assert same(kernels, every_place(codec.format).ravel())
    packet = random_words(codec.max_words(1 << 14))
    assert decoded(kernels, packet, 1 << 14).tobytes() == codec.decode(packet).tobytes()
