"""Interpreter of the vector unit's program, in numpy: one step for all threads."""

import numpy as np

from hdl.features.compute import vector_program
from hdl.features.compute.vector_program import ROOT_HALF_FRACTION, SCALE, Addend, Count, Factor
from sim.golden import floating


class Threads:
    """Threads of a lane: result, number kept and count of each."""

    def __init__(self, count):
        self.result = np.zeros(count, np.uint32)
        self.kept = np.zeros(count, np.uint32)
        self.count = np.zeros(count, np.int64)

    def run(self, step, *, element=0, largest=0, chosen=0):
        """Run a step, with an element and values of a row for each thread; both values are negated already."""
        given = self.result
        exponent, fraction = (given >> 23 & 255).astype(np.int64), given & 0x7F_FFFF
        nan = (exponent == 255) & (fraction != 0)
        upper = fraction >= ROOT_HALF_FRACTION
        if step.count == Count.POWER:
            self.count = -given.astype(np.int64) & 255
        elif step.count == Count.EXPONENT:
            self.count = (exponent + 1 + upper) & 127

        def scaled(exponents):
            return np.where(nan, given, given & 0x807F_FFFF | ((exponents & 255) << 23).astype(np.uint32))

        with np.errstate(invalid="ignore"):
            least = np.uint32(vector_program.LEAST)
            low = given.view(np.float32) < least.view(np.float32)
        a = np.broadcast_to({
            Factor.RESULT: given, Factor.LIMITED: np.where(low, least, given),
            Factor.SCALED: scaled(exponent + SCALE - self.count), Factor.SIGNIFICAND: scaled(127 - upper.astype(int)),
            Factor.COUNT: self.count.astype(np.float32).view(np.uint32),
            Factor.ELEMENT: np.asarray(element, np.uint32)}[step.a], given.shape)
        b = self.kept if step.b is None else np.uint32(step.b)
        c = {Addend.CONSTANT: np.uint32(step.constant), Addend.RESULT: given, Addend.KEPT: self.kept,
             Addend.LARGEST: np.asarray(largest, np.uint32), Addend.CHOSEN: np.asarray(chosen, np.uint32)}[step.c]
        self.result = floating.add(floating.multiply(a, b), c)
        if step.keep:
            self.kept = a
