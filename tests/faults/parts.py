"""Division of a fault campaign into parts that run separately."""

import functools
from typing import Any

from sim.verilated.features.replay.faulty_link import Fault, FaultyLink

#: Latencies of the link's wires, in cycles.
LATENCIES = range(1, 65)
#: Number of faults of each kind, relative to the number of flipped bits.
SHARES = {kind: 1.0 if kind is Fault.FLIP else 0.1 for kind in Fault}

Part = tuple[int, int, bool, int, int]  # kind of fault, wire latency, stalls on or off, number of faults, seed


@functools.cache
def link() -> FaultyLink:
    return FaultyLink()


def play_part(part: Part) -> dict[str, Any]:
    kind, latency, stalls, faults, seed = part
    counts = link().run(Fault(kind), latency=latency, faults=faults, seed=seed, stalls=stalls)
    return {"kind": Fault(kind).name, "latency": latency, "stalls": stalls, "seed": seed, **counts}


def parts_of(faults: int, seed: int) -> list[Part]:
    """Parts of a fault campaign: all kinds of faults and wire latencies, at full rate and with stalls."""
    parts = []
    for kind in Fault:
        each = -(-int(faults * SHARES[kind]) // (2 * len(LATENCIES)))
        for latency in LATENCIES:
            for stalls in (False, True):
                least = 2 if kind in (Fault.DOUBLE, Fault.SWAP) else 1
                number = seed << 20 | int(kind) << 12 | latency << 4 | stalls
                parts.append((int(kind), max(latency, least), stalls, each, number))
    return parts


def is_wrong(result: dict[str, Any]) -> bool:
    """Return whether a wrong word went undetected or a link hung.

    An 8-bit checksum accepts one in 256 random words. In packets, the CRC-32 detects these words; control words have
    no CRC, so they remain undetected.
    """
    noise = result["kind"] == Fault.NOISE.name
    return bool(result["silent"] or (not noise and (
        result["hanging"] or result["overrun"] or result["escaped"] or result["invented"])))
