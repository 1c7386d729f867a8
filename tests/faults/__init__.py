"""Faults on a link with retransmission, with both ends on Verilator: every kind, on wires of 1 to 64 cycles."""
