"""Targets of `make`: their variables, commands and virtual environment, with the standard library only."""
