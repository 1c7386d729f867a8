"""Known answers: weights, cycles, words and settings of short runs, and digests of node circuits.

``python -m tests.known_answers`` (``make known-answers``) recomputes them and compares them with answers.json.
When gateware or driver code is refactored, no answer may change.
"""
