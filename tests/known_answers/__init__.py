"""Known answers: weights, cycles, words and choices of short runs, and the circuits of nodes.

``python -m tests.known_answers`` (``make known-answers``) computes them again and compares them with answers.json.
A change that moves gateware or driver without changing their function leaves all answers as they are.
"""
