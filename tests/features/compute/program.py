"""Numpy interpreter for programs of the vector unit; it runs one step at a time for all threads."""

import numpy as np

from hdl.features.compute import vector_program
from hdl.features.compute.vector_program import ROOT_HALF_FRACTION, SCALE, Addend, Count, Factor
from sim.golden import floating


class Threads:
    """State of a lane's threads: for each thread, a result, a stored number and a count."""

    def __init__(self, count):
        self.result = np.zeros(count, np.uint32)
        self.kept = np.zeros(count, np.uint32)
        self.count = np.zeros(count, np.int64)

    def run(self, step, *, element=0, largest=0, chosen=0):
        """Run a step; ``element``, ``largest`` and ``chosen`` (the latter two negated) may differ per thread."""
        result = self.result
        exponent, fraction = (result >> 23 & 255).astype(np.int64), result & 0x7F_FFFF
        nan = (exponent == 255) & (fraction != 0)
        upper = fraction >= ROOT_HALF_FRACTION
        if step.count == Count.POWER:
            self.count = -result.astype(np.int64) & 255
        elif step.count == Count.EXPONENT:
            self.count = (exponent + 1 + upper) & 127

        def scaled(exponents):
            return np.where(nan, result, result & 0x807F_FFFF | ((exponents & 255) << 23).astype(np.uint32))

        with np.errstate(invalid="ignore"):
            least = np.uint32(vector_program.LEAST)
            low = result.view(np.float32) < least.view(np.float32)
        a = np.broadcast_to({
            Factor.RESULT: result, Factor.LIMITED: np.where(low, least, result),
            Factor.SCALED: scaled(exponent + SCALE - self.count), Factor.SIGNIFICAND: scaled(127 - upper.astype(int)),
            Factor.COUNT: self.count.astype(np.float32).view(np.uint32),
            Factor.ELEMENT: np.asarray(element, np.uint32)}[step.a], result.shape)
        b = self.kept if step.b is None else np.uint32(step.b)
        c = {Addend.CONSTANT: np.uint32(step.constant), Addend.RESULT: result, Addend.KEPT: self.kept,
             Addend.LARGEST: np.asarray(largest, np.uint32), Addend.CHOSEN: np.asarray(chosen, np.uint32)}[step.c]
        self.result = floating.add(floating.multiply(a, b), c)
        if step.keep:
            self.kept = a
