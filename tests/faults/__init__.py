"""Faults of every kind on a Verilated link with retransmission, with wire latencies of 1 to 64 cycles."""
