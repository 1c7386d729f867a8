"""Random programs for two queues, compared between golden nodes and a Verilated ring with random stalls."""
