"""Pairs of options of training runs, drawn at random: each runs, or is refused by naming both."""
