"""Targets of `make`: their variables, commands and virtual environment. Only the standard library is needed."""
