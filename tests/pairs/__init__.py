"""Pairs of commands: every operation behind every other on a Verilated ring, against a model of its memories."""
