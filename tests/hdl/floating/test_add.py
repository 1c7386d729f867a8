# amaranth: UnusedElaboratable=no
import functools
import operator

import numpy as np

from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32
from sim.golden import floating
from tests.hdl.floating import operands, pipeline

BENCH = pipeline.Operation(FloatAdder, floating.add, floating.add_exact, operator.add)
test_format = BENCH.formats()
test_golden = BENCH.golden(functools.partial(operands.corner_pairs, FP32), *(functools.partial(
    draw, FP32, np.random.default_rng(1), 1 << 12) for draw in (operands.uniform, operands.near_exponents)))
test_random = BENCH.random(operands.uniform, operands.near_exponents, seeds=(1, 2))
test_exhaustive = BENCH.exhaustive([(4, 3), (5, 2), (2, 5), (2, 1)])
test_half = BENCH.halves(operands.uniform, operands.near_exponents)
test_other_format = BENCH.others([(5, 26), (9, 22)], operands.near_exponents)
test_timing = BENCH.timing()
