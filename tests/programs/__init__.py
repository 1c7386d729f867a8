"""Random programs of two queues on a Verilated ring with random stalls, compared with golden nodes."""
