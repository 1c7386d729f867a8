"""An open FPGA fabric for data-parallel neural-network training.

In an installed wheel hdl, sim, host and boards are packages within this one; in a clone they stand beside it.
"""
