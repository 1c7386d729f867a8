"""Targets that are really built, and so measured beside their estimates."""

from fractions import Fraction

from hdl.config import Throttles
from host.estimate.machine import NODE, Machine

__all__ = ["EXECUTION", "RATIOS", "TARGETS"]

_HALF = Fraction(1, 2)

#: Machine that estimates; its nodes have throttles.
EXECUTION = Machine(name="8 MACs").throttles()

#: Multiply-adds per cycle of the execution machine and of the target, in ratios of compute to link.
RATIOS = ((8, 12), (8, 16), (4, 16))


def _node(**sections: object) -> dict[str, object]:
    return {"node": NODE.replace(**sections)}


_THROTTLED = _node(features=(Throttles(),))


#: Targets, by name. Those that differ in links alone have the nodes of the machine that estimates, whose throttles
#: are off then.
TARGETS = tuple(Machine(name=name, **options) for name, options in {  # type: ignore[arg-type]
    "16 MACs": _node(compute={"rows": 4}),
    "4 MACs": _node(compute={"rows": 1}),
    "link 1/2": {**_THROTTLED, "link": _HALF},
    "link 1/2, latency x 4": {**_THROTTLED, "link": _HALF, "latency": 64},
    "latency x 4": {**_THROTTLED, "latency": 64},
    "optimizer every 4th cycle": _node(optimizer={"interval": 4}),
    "memory x 2": _node(lanes=8, compute={"rows": 1}),
    "host port 1/2": {"host": 2},
    "16 MACs, link 1/2": {**_node(compute={"rows": 4}), "link": _HALF},
    "all 1/2": {**_node(lanes=2, optimizer={"interval": 2}), "link": _HALF, "host": 2},
}.items())
