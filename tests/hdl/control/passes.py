"""Counters of the passes of a node's queues, for models of units that compare pass numbers."""


class Passes:
    """Current pass number of each queue; these numbers never wrap around.

    Members
    -------
    passes : list of int
    stable : int
        Number of cycles since a head or its pass last changed.
    """

    def __init__(self, queues):
        self.queues = queues
        self.passes = [0] * queues
        self.stable = 0

    def advance(self, inputs):
        """Advance to the next cycle, given the ports ``clear`` and ``begins`` in the current cycle."""
        self.stable += 1
        if inputs["clear"]:
            self.passes = [0] * self.queues
            self.stable = 0
        elif inputs["begins"]:
            for queue in range(self.queues):
                self.passes[queue] += inputs["begins"] >> queue & 1
            self.stable = 0
