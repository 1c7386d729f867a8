"""Faults on a link that repeats words, with both of its ends on Verilator: every kind, on wires of 1 to 64 cycles."""
