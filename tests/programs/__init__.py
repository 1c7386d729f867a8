"""Random two-queue programs on a Verilated ring with random stalls, compared with golden nodes."""
