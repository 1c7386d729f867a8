"""Targets of `make`: variables, commands and virtual environments. Needs only the standard library."""
