"""Pairs of commands, in all combinations, on a Verilated ring, compared with a model of its memories."""
