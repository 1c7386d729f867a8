import numpy as np

from tests.features.compute.row_loader_model import trace


def _cycles(flags):
    return np.flatnonzero(flags).tolist()


def test_quiet():
    """Two rows of three elements of two lanes, whose answers begin in cycle 5, and another job behind them."""
    always = np.ones(30, bool)
    found = trace([(2, 3, True), (1, 1, True)], lanes=2, willing=always, answered=np.arange(30) >= 5, asked=always,
                  ready=always)
    assert _cycles(found.job_taken) == [0, 13]
    assert _cycles(found.request_valid) == [2, 3, 4, 5, 6, 7, 15, 16]
    assert _cycles(found.response_taken) == [5, 7, 8, 9, 11, 12, 14, 15]
    assert _cycles(found.o_valid) == [9, 10, 11, 13, 14, 15, 18]


def test_without_labels():
    """The first element is taken a cycle later, and no answer has a label."""
    always = np.ones(30, bool)
    found = trace([(2, 3, False), (1, 1, True)], lanes=2, willing=always, answered=always, asked=always, ready=always)
    assert _cycles(found.job_taken) == [0, 8]
    assert _cycles(found.request_valid) == [2, 3, 4, 5, 10, 11]
    assert _cycles(found.response_taken) == [3, 4, 6, 7, 9, 10]
    assert _cycles(found.o_valid) == [5, 6, 7, 8, 9, 10, 13]


def test_stalls():
    """The sink takes nothing until cycle 20, and that of requests every other cycle."""
    cycles = np.arange(40)
    always = cycles >= 0
    found = trace([(1, 4, True)], lanes=4, willing=cycles >= 2, answered=always, asked=cycles % 2 == 0,
                  ready=cycles >= 20)
    assert _cycles(found.job_taken) == [2]
    assert _cycles(found.request_valid) == [4, 5, 6]
    assert _cycles(found.response_taken) == [3, 20]
    assert _cycles(found.o_valid) == [*range(7, 21), 21, 22, 23]
