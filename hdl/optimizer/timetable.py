"""Timetable of an update, which assigns a cycle and a shared unit to each operation."""

import dataclasses
from collections.abc import Mapping

__all__ = ["Operation", "Slot", "Timetable", "plan"]


class Operation:
    """Operation of an update, executed once per parameter.

    Parameters
    ----------
    name : str
        Name of the operation and of its result.
    kind : str
        Kind of unit that the operation needs.
    operands : str or dict
        Name of each operand: the result of an operation or, with any other name, an external input. An operand that
        depends on the rule is a dict that maps each possible name to its condition. A leading minus inverts the sign.
    beside : str or None
        Name of another operation, before which this one is not scheduled, although its external inputs are always
        available.
    """

    def __init__(self, name, kind, *operands, beside=None):
        self.name = name
        self.kind = kind
        self.operands = tuple(operand if isinstance(operand, dict) else {operand: None} for operand in operands)
        self.beside = beside

    @property
    def sources(self):
        """Names of all possible operands of the operation, without signs."""
        return [source.removeprefix("-") for operand in self.operands for source in operand]


@dataclasses.dataclass(frozen=True)
class Slot:
    """Slot of an operation: the index of a unit of its kind, and the cycle in which its operands arrive."""

    unit: int
    cycle: int


@dataclasses.dataclass(frozen=True)
class Timetable:
    """Assignment of slots to all operations, such that a new parameter can start every ``interval`` cycles.

    Operands pass through an input register of the unit, which takes one cycle.

    Raises
    ------
    ValueError
        If two operations use the same unit in the same cycle, modulo the interval, or if an operation runs before its
        operands are available.
    """

    operations: tuple[Operation, ...]
    latencies: Mapping[str, int]
    interval: int
    slots: Mapping[str, Slot]

    def __post_init__(self):
        taken = {}
        for operation in self.operations:
            slot = self.slots[operation.name]
            key = operation.kind, slot.unit, slot.cycle % self.interval
            if key in taken:
                raise ValueError(f"{operation.name} must not be in the slot of {taken[key]}")
            taken[key] = operation.name
            for source in operation.sources:
                if source in self.slots and slot.cycle <= self.ready(source):
                    raise ValueError(f"{operation.name} must be later than cycle {self.ready(source)}, in which "
                                     f"{source} is ready, not in cycle {slot.cycle}")

    def ready(self, name):
        """Return the cycle in which the result of an operation leaves its unit; 0 for an external input."""
        if name not in self.slots:
            return 0
        kind = next(operation.kind for operation in self.operations if operation.name == name)
        return self.slots[name].cycle + self.latencies[kind]

    def loaded(self, name):
        """Return the cycle in which the operands of an operation are taken."""
        return self.slots[name].cycle - 1

    @property
    def units(self):
        """Number of units of each kind."""
        units = {}
        for operation in self.operations:
            units[operation.kind] = max(units.get(operation.kind, 0), self.slots[operation.name].unit + 1)
        return units

    def uses(self, source):
        """Return the cycles in which operations use a value."""
        return [self.loaded(operation.name) for operation in self.operations if source in operation.sources]


def plan(operations, *, latencies, interval):
    """Schedule each operation, in order, as early as possible, on the fewest units of each kind."""
    kinds = [operation.kind for operation in operations]
    slots = {}
    ready = {}
    taken = set()
    for operation in operations:
        earliest = max([1, *(ready[source] + 1 for source in operation.sources if source in ready)])
        if operation.beside:
            earliest = max(earliest, slots[operation.beside].cycle)
        units = -(-kinds.count(operation.kind) // interval)
        slot = next(
            Slot(unit, cycle)
            for cycle in range(earliest, earliest + interval)
            for unit in range(units)
            if (operation.kind, unit, cycle % interval) not in taken
        )
        taken.add((operation.kind, slot.unit, slot.cycle % interval))
        slots[operation.name] = slot
        ready[operation.name] = slot.cycle + latencies[operation.kind]
    return Timetable(tuple(operations), latencies, interval, slots)
