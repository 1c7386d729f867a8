"""A ring in software: ranks exchange packets over gloo or shared memory, with the order and bits of the gateware.

Each rank computes its own part with the kernels of :mod:`sim.arithmetic`. There is neither a launcher nor a
simulation.
"""
