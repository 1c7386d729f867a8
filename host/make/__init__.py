"""What `make` runs: targets, their variables, their virtual environment, with the standard library only."""
