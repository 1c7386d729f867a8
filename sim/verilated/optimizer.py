"""Lockstep simulation of the Verilated streamed optimizer and its golden model.

Example
-------
Run two bursts of momentum, and check every valid, ready and payload of all ports against the model::

    pair = Lockstep(workers=2, lanes=4, depth=16)
    bursts = [Burst(count=16, active=0b11), Burst(count=5, active=0b01)]
    trace = pair.run(bursts, settings, operands(pair.model, bursts, settings, draw), cycles=200)
    assert trace.ends[0] - trace.begins[0] + 1 == 4 + pair.model.reducer_latency + pair.model.update_latency
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.lib.data import StructLayout

from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.burst_controller import command_layout
from hdl.optimizer.rules import UpdateLane
from hdl.optimizer.shared_lane import SharedLane
from sim.golden.fixed_point import Fixed
from sim.golden.optimizer import Arithmetic, Floats, Rule, Scalars, SharedFloats
from sim.golden.optimizer_burst import Burst, Model, Trace
from sim.payload import pack, to_int, unpack
from sim.verilated.vectors import Feed, Unit

__all__ = ["Lockstep", "MismatchError", "beats", "floats", "operands", "settings_bits",
           "shared_floats"]

Bits = npt.NDArray[np.uint32]


class MismatchError(AssertionError):
    """Raised when the gateware and the golden model differ."""


def floats(lane: UpdateLane) -> Floats:
    """Arithmetic of the model, with the latencies of the lane's units."""
    return Floats(rules=tuple(Rule[rule.name] for rule in lane.rules), adder=lane.adder_latency,
                  multiplier=lane.multiplier_latency, limiter=lane.limiter_latency, root=lane.root_latency,
                  divider=lane.divider_latency)


def shared_floats(lane: SharedLane) -> SharedFloats:
    """Arithmetic of the model, with operation cycles from the timetable of a shared lane."""
    table = lane.timetable
    planes = range(lane.planes)
    return SharedFloats(
        rules=tuple(Rule[rule.name] for rule in lane.rules), sum_at=lane.reducer_latency,
        weight_at=min(table.uses("weight")), state_at=tuple(table.uses(f"state_{plane}")[0] for plane in planes),
        new_state_at=tuple(table.ready(("first", "second")[plane]) for plane in planes),
        latency_of_all=table.ready("new_weight"))


def _arithmetic(component: StreamedOptimizer) -> Arithmetic:
    if isinstance(component.lane, UpdateLane):
        return floats(component.lane)
    if isinstance(component.lane, SharedLane):
        return shared_floats(component.lane)
    return Fixed(width=component.lane.format.width, workers=len(component.gradients),
                 rules=tuple(Rule[rule.name] for rule in component.lane.rules))


def settings_bits(component: StreamedOptimizer, settings: Scalars) -> int:
    """Settings as an integer in the layout of the ``settings`` port."""
    layout = component.settings.shape()
    return to_int(layout, {name: int(getattr(settings, name)) for name in layout.members})


def beats(fills: Sequence[Bits], row: StructLayout) -> np.ndarray:
    """Port rows of an operand stream: the beats of all fills, with ``last`` on the final beat of each fill."""
    lanes = row.members["elements"].length
    counts = [-(-len(fill) // lanes) for fill in fills]
    elements = np.zeros((sum(counts), lanes), np.uint32)
    keep = np.zeros((sum(counts), lanes), np.uint64)
    last = np.zeros(sum(counts), np.uint8)
    number = 0
    for fill, count in zip(fills, counts, strict=True):
        elements[number:number + count].reshape(-1)[:len(fill)] = fill
        keep[number:number + count].reshape(-1)[:len(fill)] = 1
        number += count
        last[number - 1] = 1
    bits = (keep << np.arange(lanes, dtype=np.uint64)).sum(axis=1)
    return pack(row, {"elements": elements, "keep": bits, "last": last})


def operands(model: Model, bursts: Sequence[Burst], settings: Scalars,
             draw: Callable[[str, int], Bits]) -> dict[str, list[Bits]]:
    """Generate the operands of bursts; ``draw(stream, count)`` draws the elements for each stream and burst."""
    needed = {"weights": [burst.count for burst in bursts]}
    for worker in range(model.workers):
        needed[f"gradients__{worker}"] = [burst.count for burst in bursts if burst.active >> worker & 1]
    needed |= {f"state__{n}": needed["weights"] for n in range(settings.planes)}
    return {name: [draw(name, count) for count in counts] for name, counts in needed.items()}


class Lockstep:
    """A Verilated streamed optimizer together with its model.

    Parameters
    ----------
    workers, lanes, depth, update_lanes, **parameters
        Parameters of the gateware.
    """

    def __init__(self, *, workers: int = 2, lanes: int = 4, depth: int = 256, update_lanes: int | None = None,
                 **parameters: Any) -> None:
        self.component = StreamedOptimizer(workers=workers, lanes=lanes, depth=depth, update_lanes=update_lanes,
                                           **parameters)
        self.unit = Unit(self.component)
        self.model = Model(workers=workers, lanes=lanes, depth=depth, update_lanes=update_lanes or lanes,
                           interval=self.component.interval, broadcasts=len(self.component.broadcast),
                           arithmetic=_arithmetic(self.component))

    @property
    def row(self) -> StructLayout:
        """Layout of a beat of weights."""
        return self.component.weights.payload.shape()

    def drive(self, bursts: Sequence[Burst], settings: Scalars, fills: Mapping[str, Sequence[Bits]], *,
              stalls: Mapping[str, npt.NDArray[np.bool_]], cycles: int, seed: int = 1) -> dict[str, np.ndarray]:
        """Run the gateware from its current state; return the values of all ports in every cycle."""
        model = self.model
        commands = {"count": [burst.count for burst in bursts], "active": [burst.active for burst in bursts]}
        sources = {"command": Feed(pack(command_layout(model.workers, model.depth), commands), stalls.get("command"))}
        for name in model.inputs():
            rows = beats(fills.get(name, []), self.row)
            sources[name] = Feed(rows, stalls.get(name))
        return self.unit.lockstep(
            sources=sources, sinks={name: stalls.get(name, True) for name in model.outputs()}, cycles=cycles,
            inputs={"settings": settings_bits(self.component, settings)}, seed=seed)

    def run(self, bursts: Sequence[Burst], settings: Scalars, fills: Mapping[str, Sequence[Bits]], *,
            stalls: Mapping[str, npt.NDArray[np.bool_]] | None = None, cycles: int, seed: int = 1) -> Trace:
        """Run gateware and model, and check that every bit agrees in every cycle.

        The unit must be idle with empty buffers, as after a reset or once all data has left it.
        """
        stalls = stalls or {}
        trace = self.model.run(bursts, settings, fills, stalls=stalls, cycles=cycles)
        ports = self.drive(bursts, settings, fills, stalls=stalls, cycles=cycles, seed=seed)
        for name, expected in trace.signals.items():
            for cycle in np.flatnonzero(ports[name] != expected):
                raise MismatchError(f"{name} must be {expected[cycle]} in cycle {cycle}, not {ports[name][cycle]}")
        for name in self.model.outputs():
            cycles_offered = np.flatnonzero(trace.beat[name] >= 0)
            if not len(cycles_offered):
                continue
            rows, index = trace.rows[name], trace.beat[name][cycles_offered]
            offered = unpack(self.row, ports[f"{name}__payload"][cycles_offered])
            kept = rows.keep[index][:, None] >> np.arange(self.model.lanes) & 1
            wrong = ((offered["elements"] != rows.elements[index]) & (kept != 0)).any(axis=1)
            wrong |= (offered["keep"] != rows.keep[index]) | (offered["last"] != rows.last[index])
            for position in np.flatnonzero(wrong):
                raise MismatchError(f"{name} must offer row {index[position]} in cycle {cycles_offered[position]}")
        return trace
