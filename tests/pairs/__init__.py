"""Pairs of commands: every operation after every other on a Verilated ring, against a model of its memories."""
