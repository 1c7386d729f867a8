# amaranth: UnusedElaboratable=no
# The arithmetic is created in the constructor because its latencies are needed even without elaboration.
"""Update lane in which operations share arithmetic units."""

from amaranth.hdl import C, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.add import FloatAdder
from hdl.floating.compare import MagnitudeLimiter
from hdl.floating.divide import FloatDivider
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.square_root import FloatSquareRoot
from hdl.optimizer.rules import ONE, RULES, SIGN, check_rules, settings_layout
from hdl.optimizer.timetable import Operation, plan
from hdl.streams.delay import DelayLine

__all__ = ["SharedLane", "operations"]

#: Minimum delay, in number of parameters, for which a memory is smaller than a chain of registers.
_MEMORY = 8


def operations(rules, workers):
    """Return the operations of an update, in the order of slot assignment, and the name of the total gradient.

    The external inputs are ``gradient_0`` and so on, ``weight``, ``state_0``, ``state_1``, the settings, and the
    numbers 0 and 1. :class:`SharedLane` defines the conditions.
    """
    adaptive = {RULES[rule].adaptive for rule in rules}
    decoupled = {RULES[rule].decoupled for rule in rules}
    stateful = {bool(RULES[rule].planes) for rule in rules}

    def either(traits, name, value, default):
        """Return ``value`` if the rule has a trait, else ``default``; selected at run time if the rules differ."""
        if len(traits) == 1:
            return value if True in traits else default
        return {value: name, default: f"not_{name}"}

    listed = []
    level = [f"gradient_{worker}" for worker in range(workers)]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        sums = [f"sum_{len(level)}_{index}" for index in range(len(pairs))]
        listed += [Operation(name, "add", *pair) for name, pair in zip(sums, pairs, strict=True)]
        level = sums + level[2 * len(pairs):]
    total, = level

    listed += [
        Operation("scaled", "multiply", "gradient_scale", total),
        Operation("decayed", "multiply", "weight_factor", "weight", beside="scaled"),
        Operation("limited", "limit", "scaled"),
        Operation("gradient", "add", {"decayed": "couples", "-0": "not_couples"}, "limited"),
    ]
    def choose(name, traits, trait, value, default):
        """Return the name of a value that equals ``value`` if the rule has a trait and ``default`` otherwise."""
        choice = either(traits, trait, value, default)
        if isinstance(choice, dict):
            listed.append(Operation(name, "choose", choice))
            return name
        return choice

    start = choose("start", decoupled, "decoupled", "decayed", "weight")
    step = "gradient"
    if any(stateful):
        kept = either(stateful, "stateful", "kept", "-0")
        gain = either(stateful, "stateful", "first_gain", "1")
        gained = Operation("gained", "multiply", gain, "gradient")
        first = [
            Operation("kept", "multiply", "first_decay", "state_0", beside="gained"),
            Operation("first", "add", kept, "gained"),
        ]
        if not any(adaptive):
            step = "look"
            listed += [
                gained,
                *first,
                Operation("ahead", "multiply", "first_decay", "first"),
                Operation("look", "add", {"ahead": "looks", "-0": "straight"},
                          {"gradient": "looks", "first": "straight"}),
            ]
        else:
            step = "quotient"
            again, second, added = "kept_second", "state_1", "square"
            if False in adaptive:
                # The second plane's arithmetic computes Nesterov's step.
                again = {"kept_second": "keeps", "-0": "straight"}
                second = {"state_1": "adaptive", "first": "not_adaptive"}
                added = {"square": "adaptive", "gradient": "looks", "first": "straight"}
            listed += [
                Operation("gain", "multiply", "second_gain", "gradient"),
                gained,
                *first,
                Operation("square", "multiply", "gain", "gradient"),
                Operation("kept_second", "multiply", either(adaptive, "adaptive", "second_decay", "first_decay"),
                          second, beside="square"),
                Operation("second", "add", again, added),
                Operation("root", "root", "second"),
                Operation("denominator", "add", "root", "epsilon"),
            ]
            numerator = choose("numerator", adaptive, "adaptive", "first", "second")
            denominator = either(adaptive, "adaptive", "denominator", "1")
            listed.append(Operation("quotient", "divide", numerator, denominator))
    listed += [
        Operation("moved", "multiply", "learning_rate", step),
        Operation("new_weight", "add", start, "-moved"),
    ]
    return listed, total


class SharedLane(wiring.Component):
    """Compute one new weight every ``interval`` cycles from the gradients of all workers.

    Equations and results are bit-identical to :class:`~hdl.optimizer.reducer.Reducer` and
    :class:`~hdl.optimizer.rules.UpdateLane`, but the operations share units: :attr:`timetable` assigns each operation
    a slot, that is, a unit and one cycle in every ``interval``. The square root and the divider perform one operation
    each, which takes ``interval`` cycles.

    Each operand of each operation has a register at the input of its unit. The register is loaded in the preceding
    slot and is zero in all other slots; the unit's input is the OR of these registers. Before it is loaded, a value
    waits in registers that are loaded once per parameter, or in a memory.

    All gradients of a parameter are accepted in one cycle of ``phase[0]``. The following properties are as in
    :class:`~hdl.optimizer.rules.UpdateLane`, but count from the cycle of the sum, :attr:`reducer_latency` cycles
    later. There is no handshake. ``settings`` must not change while a parameter is in flight, nor a cycle earlier.

    Parameters
    ----------
    interval : int
        Number of cycles per parameter: 2, 4 or 8.
    workers : int
        Number of gradients per parameter, 1 to 8.
    rules : tuple of Rule
        See :class:`~hdl.optimizer.rules.UpdateLane`.
    dsps : int
        Number of DSP blocks that each multiplier may use: 4, 2 or 1.

    Members
    -------
    settings : In(settings_layout())
    phase : In(interval)
        One-hot: bit n is high if gradients were accepted n cycles ago, modulo the interval.
    gradients : In(32).array(workers)
    weight : In(32)
    state : In(32).array(planes)
    total : Out(32)
        Sum of the gradients.
    new_state : Out(32).array(planes)
    new_weight : Out(32)
    """

    def __init__(self, *, interval, workers, rules, dsps=4):
        if interval not in (2, 4, 8):
            raise ValueError(f"Interval must be 2, 4 or 8, not {interval!r}")
        if not isinstance(workers, int) or not 1 <= workers <= 8:
            raise ValueError(f"Worker count must be between 1 and 8, not {workers!r}")
        check_rules(rules)
        self._interval = interval
        self._workers = workers
        self._rules = rules
        self._dsps = dsps
        self._planes = max(RULES[rule].planes for rule in rules)
        kinds = {
            "multiply": lambda: FloatMultiplier(dsps=dsps),
            "add": FloatAdder,
            "limit": MagnitudeLimiter,
            "root": lambda: FloatSquareRoot(interval=interval),
            "divide": lambda: FloatDivider(interval=interval),
        }
        latencies = {kind: make().latency for kind, make in kinds.items()}
        listed, self._total = operations(rules, workers)
        self._timetable = plan(listed, latencies={**latencies, "choose": 0}, interval=interval)
        self._units = {
            (kind, number): kinds[kind]()
            for kind, count in self._timetable.units.items() if kind in kinds
            for number in range(count)
        }
        super().__init__(
            {
                "settings": In(settings_layout()),
                "phase": In(interval),
                "gradients": In(FP32.width).array(workers),
                "weight": In(FP32.width),
                "state": In(FP32.width).array(self._planes),
                "total": Out(FP32.width),
                "new_state": Out(FP32.width).array(self._planes),
                "new_weight": Out(FP32.width),
            }
        )

    @property
    def interval(self):
        """Number of cycles per parameter."""
        return self._interval

    @property
    def rules(self):
        return self._rules

    @property
    def planes(self):
        """Number of state planes that the rules require."""
        return self._planes

    @property
    def timetable(self):
        return self._timetable

    @property
    def reducer_latency(self):
        """Latency in cycles from the gradients to their sum."""
        return self._timetable.ready(self._total)

    @property
    def weight_offset(self):
        """Cycles from the summed gradient until the weight must be supplied."""
        return min(self._timetable.uses("weight")) - self.reducer_latency

    @property
    def state_offsets(self):
        """Latency in cycles from the summed gradient to reading the state of each plane."""
        taken = (self._timetable.uses(f"state_{plane}")[0] for plane in range(self._planes))
        return tuple(cycle - self.reducer_latency for cycle in taken)

    @property
    def state_latencies(self):
        """Latency in cycles from the summed gradient to the new state of each plane."""
        names = ("first", "second")[:self._planes]
        return tuple(self._timetable.ready(name) - self.reducer_latency for name in names)

    @property
    def latency(self):
        """Latency in cycles from the summed gradient to the new weight."""
        return self._timetable.ready("new_weight") - self.reducer_latency

    def elaborate(self, platform):
        m = Module()
        table, interval = self._timetable, self._interval
        results = {}
        for (kind, number), unit in self._units.items():
            m.submodules[f"{kind}_{number}"] = unit
        for operation in table.operations:
            if operation.kind == "choose":
                results[operation.name] = Signal(FP32.width, name=operation.name)
            else:
                results[operation.name] = self._units[operation.kind, table.slots[operation.name].unit].o
        # Inputs and results, each with the first cycle in which it is available, or None if it is always available.
        sources = {f"gradient_{worker}": (self.gradients[worker], 0) for worker in range(self._workers)}
        sources["weight"] = self.weight, min(table.uses("weight"))
        for plane in range(self._planes):
            sources[f"state_{plane}"] = self.state[plane], table.uses(f"state_{plane}")[0]
        sources |= {name: (result, table.ready(name)) for name, result in results.items()}
        sources |= {name: (C(bits, FP32.width), None) for name, bits in (("0", 0), ("1", ONE))}
        sources |= {name: (self.settings[name], None) for name in settings_layout().members}
        m.d.comb += self.total.eq(sources[self._total][0])
        for plane, name in enumerate(("first", "second")[:self._planes]):
            m.d.comb += self.new_state[plane].eq(results[name])
        m.d.comb += self.new_weight.eq(results["new_weight"])

        conditions = self._conditions(m)
        waiting = {name: self._wait(m, name, *source) for name, source in sources.items()}
        ports = {}
        for operation in table.operations:
            cycle = table.loaded(operation.name)
            unit = operation.name if operation.kind == "choose" else table.slots[operation.name].unit
            for index, operand in enumerate(operation.operands):
                for source, condition in operand.items():
                    value, parameters = waiting[source.removeprefix("-")](cycle)
                    # Two operations that use the same value in different slots share one register.
                    loads = ports.setdefault((operation.kind, unit, index), {}).setdefault(
                        (source, parameters, condition), (value, []))[1]
                    loads.append(self.phase[cycle % interval])
        for (kind, unit, index), registers in ports.items():
            value = 0
            for (source, parameters, condition), (operand, loads) in registers.items():
                name = f"{kind}_{unit}_{index}_{source.removeprefix('-')}_{parameters}"
                register = Signal(FP32.width, name=name, reset_less=True)
                holds = C(1, 1) if condition is None else conditions[condition]
                with m.If(Cat(loads).any() & holds):
                    m.d.sync += register.eq(operand ^ SIGN if source.startswith("-") else operand)
                with m.Else():
                    m.d.sync += register.eq(0)
                value = register | value
            if kind == "choose":
                m.d.comb += results[unit].eq(value)
            elif kind == "limit":
                m.d.comb += self._units[kind, unit].i.eq(value)
            else:
                m.d.comb += getattr(self._units[kind, unit], "ab"[index]).eq(value)
        m.d.comb += self._units["limit", 0].limit.eq(self.settings.clip)
        for operation in table.operations:
            if operation.kind in ("root", "divide"):
                m.d.comb += self._units[operation.kind, 0].load.eq(
                    self.phase[table.slots[operation.name].cycle % interval])
        return m

    def _conditions(self, m):
        """Return registers with the conditions that select operands; settings are stable during a command."""
        settings = self.settings
        chosen = {}
        for trait in ("planes", "adaptive", "decoupled"):
            chosen[trait] = Signal(name=trait)
            with m.Switch(settings.rule):
                for rule in self._rules:
                    with m.Case(rule):
                        m.d.comb += chosen[trait].eq(bool(getattr(RULES[rule], trait)))
        stateful, adaptive, decoupled = chosen.values()
        looks = settings.nesterov & stateful & ~adaptive
        holds = {
            "stateful": stateful,
            "adaptive": adaptive,
            "decoupled": decoupled,
            "couples": ~decoupled & settings.weight_factor[:-1].any(),
            "looks": looks,
            "straight": ~adaptive & ~looks,
            "keeps": adaptive | looks,
        }
        conditions = {}
        for name, value in holds.items():
            for key, flag in ((name, value), (f"not_{name}", ~value)):
                conditions[key] = Signal(name=key)
                m.d.sync += conditions[key].eq(flag)
        return conditions

    def _wait(self, m, name, value, ready):
        """Hold a value that is available for only one cycle until all operations have used it.

        Return a function that maps a cycle to the register with the value in that cycle, and its delay in parameters.
        """
        if ready is None:
            return lambda cycle: (value, 0)
        interval = self._interval
        held = {0: value}
        for parameters in sorted({-(-(cycle - ready) // interval) for cycle in self._timetable.uses(name)} - {0}):
            before = max(held)
            # Long delays use a memory, and short ones a chain of registers.
            steps = [parameters] if parameters - before >= _MEMORY else range(before + 1, parameters + 1)
            for step in steps:
                before = max(held)
                m.submodules[f"{name}_held_{step}"] = line = DelayLine(
                    shape=FP32.width, cycles=step - before, paced=True)
                m.d.comb += [line.i.eq(held[before]), line.step.eq(self.phase[ready % interval])]
                held[step] = line.o
        return lambda cycle: (held[-(-(cycle - ready) // interval)], -(-(cycle - ready) // interval))
