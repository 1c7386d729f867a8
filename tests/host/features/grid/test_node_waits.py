"""Commands that wait for commands on other nodes, in grids of nodes with two ports."""

import pytest

from hdl.features.replay.keepalive import KeepAlive
from host.features.grid.grid import Part, Shape
from host.features.programs.program import origin_of, spans
from sim.link_faults import RandomFaults
from tests.host.driver.test_node_waits import relay_race
from tests.host.features.grid.grids import ROUNDS, open_grid

#: Duration of a command in cycles, long enough for a KEEPALIVE word to be sent.
LONG = KeepAlive.period + 300


@pytest.mark.parametrize("faults", [0, 1e-3])
def test_waits_before_a_collective(faults):
    """Waits for other nodes work at the start of a run, after each SWITCH, and while control words of the previous
    run may be in transit, on each port and through a disabled node in bypass."""
    with open_grid(2, 2, config=ROUNDS, faults=RandomFaults(rate=faults, seed=1) if faults else None) as (grid, _):
        for disabled in ("", "node3", "card1", "link0:0", "", "card0", "node1"):
            plan = grid.grid.disable(*map(Part.parse, disabled.split())).plan(Shape.FLAT)
            grid.switch(plan)
            ring = grid.ring(plan)
            for first in range(ring.nodes):
                program = relay_race(ring.nodes, first=first, duration=LONG)
                ring.programs.load([program.commands(rank, ring.nodes) for rank in range(ring.nodes)])
                result = ring.programs.run(collectives=0)
                origin = origin_of(result.traces)
                by_name = {(span.node, span.name): span for rank, trace in enumerate(result.traces)
                           for span in spans(trace, program, node=rank, origin=origin)}
                for rank in set(range(ring.nodes)) - {first}:
                    assert by_name[rank, "target"].start > by_name[first, "source"].end, (disabled, first)
