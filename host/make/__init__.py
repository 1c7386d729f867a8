"""What `make` runs: targets, their variables, their virtual environment, by Python's own modules only."""
