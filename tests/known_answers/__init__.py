"""Known answers: weights, cycles, words and choices of short runs, and the circuits of nodes.

``python -m tests.known_answers`` (``make known-answers``) recomputes them and compares them with answers.json. A
change that moves gateware or driver code without changing its function leaves all answers unchanged.
"""
