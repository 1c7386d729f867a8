"""Search for the factors by which a matrix product is cut, on the gateware that carries it out."""
