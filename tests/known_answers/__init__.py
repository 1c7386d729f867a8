"""Known answers: weights, cycles, words and settings of short runs, and digests of nodes' circuits.

``python -m tests.known_answers`` (``make known-answers``) recomputes them and compares them with answers.json. A
change that moves gateware or driver code without changing its function leaves all answers unchanged.
"""
