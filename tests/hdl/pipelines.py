"""Golden model of pipelines whose stages all advance together when the output is free."""

import numpy as np

from sim.golden.stream import Feed, first_from


def together(gives, *, latency, willing, ready):
    """Handshakes of inputs accepted together, and the index of the result offered in each cycle, or -1.

    Parameters
    ----------
    gives : sequence of bool
        Whether each beat produces a result.
    latency : int
        Latency in cycles from that beat to the offer of its result.
    willing : mapping of str to array of bool
        Cycles when the source of each input may begin to offer its next beat, keyed by port name.
    ready : array of bool
        Cycles when the sink is ready.

    Returns
    -------
    ports : dict of str to array of bool
        ``valid`` and ``ready`` of each input, keyed by port name.
    offered : array of int
    """
    feeds, first_ready = {name: Feed(len(gives), pattern) for name, pattern in willing.items()}, first_from(ready)
    end = len(first_ready) - 1
    moves, offered = np.zeros(end, bool), np.full(end, -1)
    inside = []
    now = taken = results = 0
    while now < end:
        moves[now] = True
        if max(feed.offered for feed in feeds.values()) <= now:
            for feed in feeds.values():
                feed.take(now)
            if gives[taken]:
                inside.append(latency)
            taken += 1
        inside = [left - 1 for left in inside]
        now += 1
        if inside and inside[0] == 0:
            inside.pop(0)
            departed = first_ready[min(now, end)]
            offered[now:departed + 1] = results
            results += 1
            now = departed
    ports = {f"{name}__valid": feed.valid for name, feed in feeds.items()}
    for name in feeds:
        peers = (feed.valid for other, feed in feeds.items() if other != name)
        ports[f"{name}__ready"] = np.all([moves, *peers], axis=0)
    return ports, offered
