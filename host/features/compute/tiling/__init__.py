"""Search for tiling factors of a matrix product, on the gateware that executes it."""
