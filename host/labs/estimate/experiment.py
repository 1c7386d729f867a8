"""Estimate the cycles of programs on target machines, and compare them with measured cycles."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from host.labs.estimate.machine import Machine, Opened, opened
from host.labs.estimate.program import Case, Measured, check, compute_cycles, prepare
from host.labs.estimate.scaling import estimate, throttled

__all__ = ["REGISTERS", "Bench", "Row", "check_delay", "compare", "rates_of", "ratios", "throttle"]

#: For each part of the machine, the register of its throttle and the lowest bit in the register.
REGISTERS = {"link": ("THROTTLE_LINK", 0), "memory": ("THROTTLE_MEMORY", 0), "compute": ("THROTTLE_COMPUTE", 0),
             "optimizer": ("THROTTLE_COMPUTE", 16), "host": ("THROTTLE_HOST", 0)}

_LONGEST, _QUIET = 255, 300  # maximum link delay, and idle cycles before a new delay takes effect


@dataclasses.dataclass(frozen=True)
class Row:
    """Estimated and measured cycles of a program on a target machine."""

    #: Names of the target machine and of the program.
    target: str
    program: str
    length: int  # number of parameters of the network
    overlapped: bool  # whether computation and communication overlap
    alpha: float  # the plain estimate is this factor times the throttled cycles
    #: Cycles on the execution machine: unthrottled, throttled, and with all throttled rates halved again.
    execution: float
    first: float
    second: float
    #: Estimated cycles on the target, and the plain estimate: the throttled cycles times alpha.
    estimate: float
    plain: float
    #: Estimates from a single metric: cycles on the execution machine, scaled by the ratio of both machines' rates.
    singles: dict[str, float]
    truth: float  # measured cycles on the target

    def error(self, value: float) -> float:
        """Return the relative error of an estimate of the target's cycles."""
        return value / self.truth - 1

    @property
    def best_single(self) -> tuple[str, float]:
        """The metric that gives the best single-metric estimate, and that estimate."""
        return min(self.singles.items(), key=lambda single: abs(self.error(single[1])))

    @property
    def better(self) -> bool:
        """Whether the estimate is closer to the measured cycles than every single-metric estimate."""
        return abs(self.error(self.estimate)) < abs(self.error(self.best_single[1]))


def throttle(opened: Opened, registers: dict[str, int], *, delay: int = 0) -> None:
    """Set the throttles and the link delay of all nodes."""
    values: dict[str, int] = {}
    for metric, (name, bit) in REGISTERS.items():
        values[name] = values.get(name, 0) | registers.get(metric, 0) << bit
    for device in opened.ring.devices:
        for name, value in {**values, "DELAY_LINK": delay}.items():
            device.write_register(name, value)
    opened.simulation.run(_QUIET)


def check_delay(execution: Machine, target: Machine) -> int:
    """Return the cycles by which the execution machine's links must be delayed to match the target's latency."""
    delay = target.latency - execution.latency
    if not 0 <= delay <= _LONGEST:
        raise ValueError(f"Latency of {target.name} must be {execution.latency} to {execution.latency + _LONGEST} "
                         f"cycles, which links can be delayed to, not {target.latency}")
    return delay


class Bench:
    """Measurements on the execution machine, which has nodes with throttles."""

    def __init__(self, opened: Opened):
        self.machine = opened.machine
        if not self.machine.node.has("throttles"):
            raise ValueError(f"Nodes of {self.machine.name} must have throttles to estimate")
        self._opened = opened
        self._known: dict[Case, Measured] = {}

    def untouched(self, case: Case) -> Measured:
        """Measure a training step without throttles."""
        if case not in self._known:
            self._known[case] = self._run(case, {}, 0)
        return self._known[case]

    def throttled(self, case: Case, registers: dict[str, int], *, delay: int) -> float:
        """Measure the cycles of a throttled step, which starts from the same weights as the unthrottled step."""
        measured = self._run(case, registers, delay)
        if measured.weights != self.untouched(case).weights:
            raise AssertionError(f"Weights of {case} differ with throttles {registers}")
        return measured.cycles

    def row(self, name: str, case: Case, own: dict[str, Fraction], rates: dict[str, Fraction], *, delay: int,
            truth: float) -> Row:
        """Estimate a target's cycles from the rates of both machines and two runs on the throttled machine."""
        shares = throttled(own, rates)
        first, second = (self.throttled(case, shares.registers(slower=slower), delay=delay) for slower in (1, 2))
        execution = self.untouched(case).cycles
        return Row(
            target=name, program=str(case), length=case.length, overlapped=case.overlapped, alpha=float(shares.alpha),
            execution=execution, first=first, second=second, estimate=estimate(shares.alpha, first, second),
            plain=float(shares.alpha) * first, truth=truth,
            singles={metric: execution * float(own[metric] / rates[metric]) for metric in own})

    def _run(self, case: Case, registers: dict[str, int], delay: int) -> Measured:
        step = prepare(self._opened, case)
        throttle(self._opened, registers, delay=delay)
        return step.measure()


def rates_of(execution: Machine, target: Machine,
             cases: Iterable[Case]) -> list[tuple[dict[str, Fraction], dict[str, Fraction]]]:
    """Return the rates of the execution machine and of a target for each program. Raises ``ValueError`` if a machine
    cannot run a program, or if the execution machine cannot estimate the target."""
    check_delay(execution, target)
    pairs = []
    for case in cases:
        for machine in (execution, target):
            check(machine, case)
        own, target_rates = (machine.rates(compute_cycles(machine, case)) for machine in (execution, target))
        throttled(own, target_rates)
        pairs.append((own, target_rates))
    return pairs


def compare(bench: Bench, target: Machine, cases: Iterable[Case], *,
            announce: Callable[[str], None] = lambda stage: None) -> list[Row]:
    """Estimate programs on a target, which is then also built and run. Raises ``ValueError`` before building anything
    if the target cannot run a program, or if this machine cannot estimate it."""
    cases, execution = list(cases), bench.machine
    rates, delay = rates_of(execution, target, cases), check_delay(execution, target)
    announce(f"{target.name}: build and run")
    with opened(target, announce=lambda stage: announce(f"{target.name}: {stage}")) as real:
        truths = [prepare(real, case).measure().cycles for case in cases]
    rows = []
    for case, (own, target_rates), truth in zip(cases, rates, truths, strict=True):
        announce(f"{target.name}: estimate, {case}")
        rows.append(bench.row(target.name, case, own, target_rates, delay=delay, truth=truth))
    return rows


def ratios(bench: Bench, cases: Iterable[Case], pairs: Sequence[tuple[int, int]], *,
           announce: Callable[[str], None] = lambda stage: None) -> list[Row]:
    """Estimate the effect of faster compute with unchanged links. A stub that models the time of an engine takes its
    place. Each pair has the multiply-adds per cycle of the execution machine and of the target, which replace the
    numbers in the cases."""
    machine, rows = bench.machine, []
    for case in cases:
        for before, after in pairs:
            announce(f"{before} to {after} MACs, {case}")
            old, new = (dataclasses.replace(case, macs=macs) for macs in (before, after))
            check(machine, old)
            own = machine.rates(1)
            rates = {**own, "compute": own["compute"] * Fraction(after, before)}
            rows.append(bench.row(f"{before} to {after} MACs", old, own, rates, delay=0,
                                  truth=bench.untouched(new).cycles))
    return rows
