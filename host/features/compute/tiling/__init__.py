"""Search for a matrix product's tiling factors by running candidates on the actual gateware."""
