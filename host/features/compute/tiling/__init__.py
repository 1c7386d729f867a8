"""Search for the tiling factors of a matrix product, run on the actual gateware."""
