# amaranth: UnusedElaboratable=no
"""Test a lane of the row unit: hdl/features/compute/row_lane.py."""

import numpy as np
import pytest

from hdl.features.compute.row_lane import RowLane, control_layout, loaded_layout
from hdl.features.compute.row_pass import A, B, C, D, Load
from sim.golden.summation import canonical
from sim.payload import pack, unpack
from sim.verilated.vectors import Unit
from tests.features.compute.terms import KINDS, draw
from tests.refusals import refuses

ROWS, GROUPS = 8, 4
_BUFFERS = (Load.X, Load.Y, Load.START, Load.SCALE, Load.SHIFT)
_ADDER = 7


def test_parameters():
    refuses("DSP block count must be 4, 2 or 1, not 3", RowLane, rows=ROWS, groups=GROUPS, dsps=3)


def _number(bits):
    return np.uint32(bits).view(np.float32)


def _compute(control, scalars, buffers, work, before):
    """Expected result and running sum for one element, as bit patterns."""
    row, group = control["row"], control["group"]
    at = {load: buffers[load][row, group] for load in (Load.X, Load.Y, Load.START)}
    at |= {load: buffers[load][0, group] for load in (Load.SCALE, Load.SHIFT)}
    unit, nothing, start = np.float32(1), np.float32(-0.0), at[Load.START] if scalars["started"] else np.float32(-0.0)
    scalar, held = scalars["scalar"], work[row, group]
    a = {A.X: at[Load.X], A.Y: at[Load.Y], A.WORK: held, A.SUM: scalar}[control["a"]]
    b = {B.NOTHING: nothing, B.START: start, B.SUM: -scalar, B.SCALAR: -scalar}[control["b"]]
    added = a + b
    c = {C.ONE: unit, C.Y: at[Load.Y], C.SAME: added, C.SCALE: at[Load.SCALE], C.FACTOR: scalars["factor"],
         C.DEVIATION: scalars["deviation"], C.SECOND_SCALAR: -scalar,
         C.ONE_AND_Y: at[Load.Y] if control["half"] else unit}[control["c"]]
    d = {D.NOTHING: nothing, D.START: start, D.WORK: held, D.SHIFT: at[Load.SHIFT],
         D.EPSILON: scalars["epsilon"]}[control["d"]]
    product = added * c
    if not control["summed"]:
        result = canonical(product + d)
        return result.view(np.uint32), result.view(np.uint32)
    outside = control["edge"] and scalars["outside"]
    product = nothing if outside else canonical(product)
    return product.view(np.uint32), canonical(before + product).view(np.uint32)


@pytest.mark.parametrize("dsps", [4, 1])
def test_elements(dsps):
    """Results, sums and the work buffer are correct for all operands and targets, at one element per cycle."""
    lane = RowLane(rows=ROWS, groups=GROUPS, dsps=dsps)
    unit, latency = Unit(lane), lane.latency
    for seed, kind in enumerate(KINDS):
        generator = np.random.default_rng(seed)
        loads = [(load, row, group) for load in _BUFFERS for row in range(ROWS) for group in range(GROUPS)
                 if load < Load.SCALE or row == 0]
        begin, count = len(loads), 600
        cycles = begin + ROWS * GROUPS + latency + count
        buffers = {load: draw(generator, kind, ROWS, GROUPS).astype(np.uint32).view(np.float32) for load in _BUFFERS}
        loaded = pack(loaded_layout(ROWS, GROUPS), {
            "valid": np.arange(cycles) < begin,
            **{name: np.array([entry[position] for entry in loads] + [0] * (cycles - begin))
               for position, name in enumerate(("load", "row", "group"))},
            "element": np.array([buffers[load][row, group].view(np.uint32) for load, row, group in loads]
                                + [0] * (cycles - begin))})

        # The work buffer is first filled with x. The random elements that follow read a stored result only after some
        # cycles.
        filling = [{"a": A.X, "kept": 1, "row": row, "group": group}
                   for row in range(ROWS) for group in range(GROUPS)]
        controls = [{} for _ in range(begin)] + filling + [{} for _ in range(latency)]
        controls += [{"a": int(generator.integers(len(A))), "b": int(generator.integers(len(B))),
                      "c": int(generator.integers(len(C))), "d": int(generator.integers(len(D))),
                      "row": int(generator.integers(ROWS)), "group": int(generator.integers(GROUPS)),
                      **{name: int(generator.integers(2)) for name in ("half", "edge", "summed")}}
                     for _ in range(count)]
        kept = np.zeros((ROWS, GROUPS), np.int64)
        for cycle in range(begin + len(filling) + latency, cycles):
            entry = controls[cycle]
            position = entry["row"], entry["group"]
            if cycle <= kept[position]:
                entry["row"], entry["group"], entry["kept"] = 0, 0, 0
            elif position != (0, 0) and generator.random() < 0.3:
                entry["kept"], kept[position] = 1, cycle + latency
        fields = control_layout(ROWS, GROUPS).members
        full = [{name: int(entry.get(name, 0)) for name in fields} for entry in controls]
        inputs = {name: draw(generator, kind, cycles).astype(np.uint32)
                  for name in ("scalar", "deviation", "partial")}
        held = {name: int(draw(generator, kind, 1)[0]) for name in ("factor", "epsilon")}
        flags = {"started": seed % 2, "outside": int(seed > 1)}
        outputs = unit.run({
            "loaded": loaded, "control": pack(control_layout(ROWS, GROUPS), {
                name: np.array([entry[name] for entry in full]) for name in fields}),
            **inputs, **held, **flags, "live": np.ones(cycles, np.uint8)}, cycles=cycles, drain=latency)

        work, due = np.zeros((ROWS, GROUPS), np.float32), {}
        late = unpack(control_layout(ROWS, GROUPS), outputs["late"])
        with np.errstate(all="ignore"):
            for cycle in range(begin, cycles - _ADDER):
                for position, value in due.pop(cycle, []):
                    work[position] = value
                entry = full[cycle]
                before = _number(inputs["partial"][min(cycle + latency - _ADDER, cycles - 1)])
                if cycle + latency - _ADDER >= cycles:
                    break
                scalars = {"scalar": _number(inputs["scalar"][cycle + 1]),
                           "deviation": _number(inputs["deviation"][cycle + 1]),
                           **{name: _number(value) for name, value in held.items()}, **flags}
                result, total = _compute(entry, scalars, buffers, work, before)
                note = f"{seed=}, {cycle=}, {entry}"
                assert outputs["result"][cycle + latency] == result, note
                assert outputs["o"][cycle + latency] == total, note
                assert late["row"][cycle + latency] == entry["row"], note
                if entry["kept"]:
                    due.setdefault(cycle + latency + 1, []).append(((entry["row"], entry["group"]), _number(result)))
