"""Estimate the cycles of a schedule's commands before they are run.

COMPUTE is assumed to perform :attr:`Costs.macs` multiply-adds per cycle. Collectives are interpolated in a table
measured on Verilated nodes with the default :class:`~hdl.config.NodeConfig`, dense gradients, raw weights, momentum
and a link latency of 16 cycles. Sparse gradients and codecs are faster.
"""

import bisect
import dataclasses
import enum

from sim.golden.constants import constant

__all__ = ["MACS", "Collective", "Costs"]

#: Default number of multiply-adds per cycle of a compute engine.
MACS = 16

_LATCH = constant("schedules", 4, "duration of a LATCH", "assumed")


class Collective(enum.Enum):
    """Collective operations; schedules use all of them except all-reduce."""

    FUSED_UPDATE = enum.auto()
    ALL_REDUCE = enum.auto()
    REDUCE_SCATTER = enum.auto()
    ALL_GATHER = enum.auto()


_LENGTHS = (32, 64, 128, 256, 352, 512, 768, 1024, 1056, 1280, 1536, 2048, 2080, 3168, 4096, 4224, 6336, 8192, 16384)
_MEASURED: dict[Collective, dict[int, tuple[int, ...]]] = {
    Collective.FUSED_UPDATE: {
        1: (183, 223, 303, 463, 559, 719, 975, 1231, 1263, 1487, 1743, 2255, 2287, 3375, 4303, 4431, 6543,
            8399, 16591),
        2: (301, 309, 382, 528, 674, 820, 920, 1191, 1228, 1427, 1719, 2247, 2284, 3382, 4359, 4449, 6634,
            8583, 17031),
        3: (409, 420, 497, 639, 771, 1007, 1356, 1533, 1565, 1914, 2255, 2970, 3003, 4498, 5757, 5927, 8825,
            11418, 22653),
        4: (517, 528, 542, 679, 838, 1073, 1479, 1885, 1927, 2106, 2500, 3312, 3501, 5132, 6480, 6721, 9962,
            12816, 25488),
        8: (949, 960, 974, 994, 1123, 1259, 1686, 2149, 2222, 2612, 3075, 4001, 4337, 5891, 7540, 8209, 11915,
            14932, 29716),
    },
    Collective.REDUCE_SCATTER: {
        2: (156, 162, 203, 285, 367, 449, 553, 717, 726, 821, 985, 1253, 1262, 1811, 2325, 2347, 3460, 4469,
            8757),
        3: (233, 239, 280, 348, 422, 537, 718, 884, 884, 1073, 1254, 1609, 1642, 2383, 3028, 3102, 4568, 5897,
            11604),
        4: (310, 316, 316, 357, 452, 559, 773, 987, 1120, 1161, 1363, 1791, 1924, 2728, 3399, 3532, 5181,
            6615, 13047),
        8: (618, 624, 624, 624, 665, 665, 868, 1107, 1148, 1346, 1585, 2063, 2500, 3090, 3939, 4376, 6252,
            7691, 15195),
    },
    Collective.ALL_GATHER: {
        2: (96, 96, 136, 216, 296, 376, 476, 636, 645, 736, 896, 1156, 1165, 1696, 2196, 2216, 3296, 4276,
            8436),
        3: (128, 133, 173, 277, 349, 461, 637, 797, 797, 981, 1157, 1501, 1533, 2215, 2877, 2949, 4365, 5661,
            11197),
        4: (160, 165, 170, 274, 378, 482, 690, 898, 940, 1054, 1262, 1678, 1720, 2510, 3238, 3290, 4922, 6358,
            12598),
        8: (288, 293, 303, 318, 422, 550, 782, 1014, 1054, 1246, 1478, 1942, 2108, 2938, 3762, 3943, 5773,
            7402, 14682),
    },
}


def _between(xs: tuple[int, ...], ys: tuple[float, ...], x: int) -> float:
    """Interpolate linearly, or extrapolate from the first or last two points."""
    if len(xs) == 1:
        return ys[0]
    right = min(max(bisect.bisect_left(xs, x), 1), len(xs) - 1)
    part = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + part * (ys[right] - ys[right - 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Estimated durations of commands."""

    #: Examples per node in each pass, for the node with the most examples.
    examples: int
    #: Multiply-adds per cycle.
    macs: int = MACS
    #: Cycles that a LATCH takes.
    latch: int = _LATCH

    def __post_init__(self) -> None:
        for name, value, least in (("Examples", self.examples, 0), ("MACs", self.macs, 1), ("Latch", self.latch, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value!r}")

    def compute(self, multiplications: int) -> int:
        """Estimate the cycles of a COMPUTE command from its multiply-adds per example."""
        return -(-self.examples * multiplications // self.macs)

    def collective(self, kind: Collective, length: int, *, nodes: int) -> int:
        """Estimate the cycles of a collective on ``nodes`` nodes; with a single node no links are used."""
        table = _MEASURED[kind]
        if length == 0 or nodes < min(table):
            return 0
        sizes = tuple(table)
        if nodes == 1:
            return round(_between(_LENGTHS, table[1], length))
        rings = sizes[sizes.index(2):]
        return round(_between(rings, tuple(_between(_LENGTHS, table[size], length) for size in rings), nodes))
