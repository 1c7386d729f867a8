"""Known answers: weights, cycles, words and settings of short runs, and digests of node circuits.

``python -m tests.known_answers`` (``make known-answers``) recomputes them and compares them with answers.json.
Refactoring gateware or driver code must not change any answer.
"""
