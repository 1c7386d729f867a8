"""Random programs of two queues on a Verilated ring, with random stalls, against golden nodes."""
