"""Cycle-accurate golden model of :mod:`hdl.features.compute.row_loader`."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden.stream import Feed, Output, Stages

Integers = npt.NDArray[np.int64]

_STAGES = 3


def trace(jobs: list[tuple[int, int, bool]], *, lanes: int, willing: npt.ArrayLike, answered: npt.ArrayLike,
          asked: npt.ArrayLike, ready: npt.ArrayLike) -> tuple[dict[str, Any], dict[str, Integers]]:
    """Trace every cycle after a reset, for jobs given as (rows, columns, whether rows have labels).

    Returns the input handshakes, with ready set only while valid is, and the numbers of the offered requests and
    elements, or -1 if none is offered. A job is accepted when the previous job's last request is in the output
    register and its last element is consumed. From the next cycle on, requests are made and answers accepted (one
    cycle later without labels), one answer per memory row, in cycles when the later stages move.
    """
    rows = [(int(labelled), -(-columns // lanes)) for count, columns, labelled in jobs for _ in range(count)]
    offers, answers = Feed(len(jobs), willing), Feed(sum(map(sum, rows)), answered)
    requests, stages = Output(asked), Stages(_STAGES, ready)
    taken = {name: np.zeros(offers.end, np.bool_) for name in ("job", "response")}
    free = 0

    def take(name: str, feed: Feed, cycle: int) -> None:
        if cycle < feed.end:
            taken[name][cycle] = True
        feed.take(cycle)

    for count, columns, labelled in jobs:
        begin = max(offers.offered, free)
        take("job", offers, begin)
        asking = now = begin + 1
        for _ in range(count):
            for _ in range(labelled + -(-columns // lanes)):
                asking = requests.load(asking) + 1
            if labelled:
                now = stages.move(max(now, answers.offered))
                take("response", answers, now)
            for column in range(columns):
                now = stages.enter(max(now + 1, answers.offered))[0]
                if column % lanes == lanes - 1 or column == columns - 1:
                    take("response", answers, now)
            now += labelled
        free = max(asking, now + (not labelled))
    ports = {"job__valid": offers.valid, "job__ready": (taken["job"], offers.valid),
             "response__valid": answers.valid, "response__ready": (taken["response"], answers.valid)}
    return ports, {"request": requests.offered, "o": stages.offered}
