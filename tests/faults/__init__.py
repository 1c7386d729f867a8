"""Every kind of fault on a Verilated link with retransmission, for wire latencies of 1 to 64 cycles."""
