"""Every pair of commands on a Verilated ring, compared with a model of the nodes' memories."""
