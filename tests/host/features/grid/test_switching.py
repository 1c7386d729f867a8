"""Test host/features/grid/switching.py and the gateware of docs/ring/topology.md on simulated two-port nodes."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation
from hdl.ring.topology import Source
from host.driver.command import Command
from host.driver.diagnosis import RingError
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Rule, Settings
from host.features.grid.grid import Part, Shape, Topology, TopologyError
from host.features.grid.owners import carry_over
from host.features.grid.switching import GridNodes
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS
from sim.golden.features.grid import grid as golden_grid
from sim.link_faults import RandomFaults
from tests import mx5
from tests.host.features.grid.grids import CONFIG, open_grid
from tests.host.rings import CONFIGS, TIMEOUT, random

CODEC = GRADIENT_CODECS[CONFIG.gradients]
MEAN = {"rule": Rule.SGD, "learning_rate": -1.0}  # turns zero weights into the mean gradient in one update


def plan_of(grid, disabled, shape):
    return grid.grid.disable(*map(Part.parse, disabled.split())).plan(shape)


def opened(grid, plan):
    """Switch to a topology plan; return the driver of its rings and the order of the nodes in it."""
    grid.switch(plan)
    if plan.shape is Shape.FLAT:
        return grid.ring(plan), plan.order
    return grid.rings(plan), plan.order


def check_received(grid, message):
    counters = grid.counters.read()
    assert sum(row["WORDS_SENT"] for row in counters) == sum(row["WORDS_RECEIVED"] for row in counters), message


def words_by_link(simulation):
    return np.array([link.status().words_sent for link in simulation.links])


def used_links(grid, plan):
    """Return a mask of the links in use, meaning links with an output port that sends."""
    return np.array([plan.settings[node].outputs[port] != 0 for node, port in grid.grid.links])


def test_known_answers():
    """On 2 x 2 nodes with gradients 1, 2, 3, 4, the mean is 2.5 in any shape, 2 without node 3, and 1.5 without card
    1."""
    length = 100
    with open_grid(2, 2) as (grid, simulation):
        for disabled, shape, average in (
                ("", Shape.FLAT, 2.5), ("", Shape.GRID, 2.5), ("node3", Shape.FLAT, 2), ("card1", Shape.FLAT, 1.5),
                ("card1", Shape.GRID, 1.5), ("link0:0", Shape.FLAT, 2.5), ("", Shape.GRID, 2.5)):
            plan = plan_of(grid, disabled, shape)
            rings, order = opened(grid, plan)
            before = words_by_link(simulation)
            rings.memory.write_weights(np.zeros(length, np.float32))
            rings.memory.write_gradients([np.full(length, node + 1, np.float32) for node in order])
            rings.settings.write(Settings(gradient_scale=plan.gradient_scale(order[0]), **MEAN))
            rings.collectives.fused_update(length)
            assert (rings.memory.read_weights(length) == average).all(), (disabled, shape)
            carried = words_by_link(simulation) - before
            assert ((carried > 0) == used_links(grid, plan)).all(), (disabled, shape)
            check_received(grid, (disabled, shape))


def test_rows_and_columns():
    """On 2 x 3 nodes, a sum can be restricted to rows or to columns."""
    generator = np.random.default_rng(2)
    length = 333
    gradients = golden.bits(random(generator, (6, length)))
    with open_grid(2, 3) as (grid, _):
        for shape, ring in ((Shape.HORIZONTAL, 0), (Shape.VERTICAL, 1)):
            plan = grid.grid.plan(shape)
            grid.switch(plan)
            rings = grid.rings(plan)
            rings.memory.write_gradients(list(golden.floats(gradients)))
            rings.collectives.all_reduce(length, ring=ring)
            sums = rings.memory.read_gradients(length).view(np.uint32)
            for members in plan.rings:
                expected, _ = golden.all_reduce(gradients[list(members)], gradient_codec=CODEC,
                                                segment=CONFIG.segment)
                assert (sums[list(members)] == expected).all()


class Model:
    """Golden model of an update on the active nodes, without residuals or master weights."""

    def __init__(self, weights, planes):
        self.weights = golden.bits(weights)
        self.state = [np.zeros_like(self.weights) for _ in range(planes)]

    def step(self, plan, order, gradients, settings):
        """Run an update of the golden model; return the number of words sent by each node, in order."""
        options = {"gradient_codec": CODEC, "segment": CONFIG.segment, "lanes": CONFIG.lanes}
        numbers = golden.settings(Rule.MOMENTUM, gradient_scale=settings.gradient_scale, first_decay=0.9,
                                  learning_rate=settings.learning_rate, clip=np.inf)
        if plan.shape is Shape.FLAT:
            update = golden.fused_update(gradients, self.weights, self.state, numbers, **options)
            words = update.traffic.words
        else:
            rows = len({ring[0] for ring in plan.rings[:plan.settings[order[0]].seats[1].size]})
            update = golden_grid.fused_update(gradients.reshape(rows, len(order) // rows, -1), self.weights,
                                              self.state, numbers, **options)
            words = update.words.reshape(-1)
        self.weights, self.state = update.weights, update.state
        return words.tolist()


CHANGES = [("", Shape.GRID), ("card1", Shape.FLAT), ("", Shape.FLAT), ("link2:1", Shape.FLAT), ("node5", Shape.FLAT),
           ("node1 node5", Shape.GRID), ("", Shape.GRID)]


def test_training_through_changes():
    """While cards, nodes and links of 2 x 4 nodes leave and join, weights, state and words match the golden model
    after every change and step, and no word is lost or duplicated."""
    generator = np.random.default_rng(3)
    length = 1500
    weights = random(generator, length)
    model = Model(weights, 1)
    with open_grid(2, 4) as (grid, simulation):
        rings = old = None
        for number, (disabled, shape) in enumerate(CHANGES):
            plan = plan_of(grid, disabled, shape)
            following, order = opened(grid, plan)
            check_received(grid, number)
            if rings is None:
                following.memory.write_weights(weights)
                following.memory.clear_state(length)
            else:
                account = carry_over(rings, following, Allocation(length=length, planes=1), old=old, new=plan)
                assert set(account.left) == set(old.active) - set(plan.active)
            rings, old = following, plan

            def compare(rings=rings, plan=plan):
                message = f"{plan.shape}, {plan.active}"
                assert (rings.memory.read_weights(length).view(np.uint32) == model.weights).all(), message
                assert (rings.memory.read_state(length).view(np.uint32) == model.state[0]).all(), message

            compare()
            settings = Settings(rule=Rule.MOMENTUM, gradient_scale=plan.gradient_scale(order[0]), learning_rate=0.1,
                                first_decay=0.9)
            rings.settings.write(settings)
            for _ in range(2):
                gradients = random(generator, (len(order), length))
                rings.memory.write_gradients(list(gradients))
                grid.counters.clear()
                before = words_by_link(simulation)
                rings.collectives.fused_update(length)
                words = model.step(plan, order, golden.bits(gradients), settings)
                assert [node["WORDS_SENT"] for node in rings.counters.read()] == words, number
                compare()
                assert ((words_by_link(simulation) > before) == used_links(grid, plan)).all(), number
            check_received(grid, number)


REPAIRS = ("LINK_RESTARTS", "WORDS_REPEATED", "CHECKS_FAILED")


def mended_run(faults, *, latency=16):
    """Train through four topology changes on links with replay. Return weights, master weights and state after each
    step, the cycles per step, and the number of repairs.
    """
    generator = np.random.default_rng(4)
    length = 700
    bits, cycles = [], []
    with (mx5.registered(),
          open_grid(2, 4, config=CONFIGS["narrow"], latency=latency, faults=faults) as (grid, simulation)):
        rings = old = None
        for disabled, shape in (("", Shape.GRID), ("card1", Shape.FLAT), ("link2:1", Shape.FLAT), ("", Shape.GRID)):
            plan = plan_of(grid, disabled, shape)
            following, order = opened(grid, plan)
            if rings is None:
                following.memory.write_weights(random(generator, length))
                following.memory.clear_state(length)
            else:
                carry_over(rings, following, Allocation(length=length, planes=1), old=old, new=plan)
            rings, old = following, plan
            rings.settings.write(Settings(rule=Rule.MOMENTUM, gradient_scale=plan.gradient_scale(order[0]),
                                          learning_rate=0.1, first_decay=0.9))
            rings.memory.write_gradients(list(random(generator, (len(order), length))))
            before = words_by_link(simulation)
            cycles.append(rings.collectives.fused_update(length).cycles)
            memory = rings.memory
            bits += [memory.read_weights(length), memory.read_master(length), memory.read_state(length)]
            assert ((words_by_link(simulation) > before) == used_links(grid, plan)).all(), disabled
            check_received(grid, disabled)
        assert {device.read_register("LINK_DELAY") for device in grid.devices} == {latency + 1}
        repairs = {name: sum(item[name] for item in grid.counters.read()) for name in REPAIRS}
    return [item.view(np.uint32) for item in bits], cycles, repairs


def test_links_that_mend_themselves():
    """Nodes and links with replay can leave and join between steps on faulty wires; all results are bit-identical to
    a run without faults.
    """
    clean, cycles, repairs = mended_run(None)
    assert not any(repairs.values())
    for rate, most in ((1e-4, 1.03), (1e-3, 1.15)):
        bits, longer, repairs = mended_run(RandomFaults(rate=rate, seed=7))
        assert all((here == there).all() for here, there in zip(bits, clean, strict=True)), rate
        assert all(repairs.values()), rate
        assert sum(cycles) <= sum(longer) <= most * sum(cycles), rate


def test_refused_before_anything_is_sent():
    """Planning fails on cut links before any command is sent to the nodes."""
    with open_grid(2, 2) as (grid, simulation):
        cycle = simulation.cycle
        with pytest.raises(TopologyError, match="Enabled links must lead round through all enabled nodes"):
            plan_of(grid, "link1:0 link1:1", Shape.FLAT)
        assert simulation.cycle == cycle


def test_busy():
    """Nodes with packets in transit reject a SWITCH; all other nodes switch."""
    length = 300
    with open_grid(2, 2) as (grid, _):
        plan = grid.grid.plan(Shape.FLAT)
        grid.switch(plan)
        ring = grid.ring(plan)
        first, second = plan.rings[0][:2]
        # Only one node starts the all-reduce, so its first packet waits at the next node.
        grid.devices[first].push(Command(operation=Operation.ALL_REDUCE, size=4, rank=0, length=length, collective=9,
                                         tag=9))
        event = grid.devices[first].pop_event(8 * TIMEOUT)
        assert event.status is EventStatus.INGRESS_TIMEOUT
        with pytest.raises(RingError, match="packets are still under way at its ports") as caught:
            grid.switch(grid.grid.plan(Shape.GRID))
        statuses = [event.status for event in caught.value.events]
        assert [node for node, status in enumerate(statuses) if status is EventStatus.BUSY] == sorted([first, second])
        grid.recover()
        grid.switch(plan)
        ring = grid.ring(plan)
        ring.memory.write_gradients([np.full(length, node + 1, np.float32) for node in plan.rings[0]])
        ring.collectives.all_reduce(length)
        assert (ring.memory.read_gradients(length) == 10).all()


@pytest.mark.parametrize("name", ["engines", "narrow"])
def test_failure_in_two_dimensions(name):
    """If a row or column link is cut, the update ends and the error names the link; after recovery, updates are
    correct again."""
    length = 300
    with mx5.registered(), open_grid(2, 2, config=CONFIGS[name]) as (grid, simulation):
        plan = grid.grid.plan(Shape.GRID)
        grid.switch(plan)
        rings = grid.rings(plan)

        def update():
            rings.settings.write(Settings(gradient_scale=0.25, **MEAN))
            rings.memory.write_weights(np.zeros(length, np.float32))
            rings.memory.write_gradients([np.full(length, node + 1, np.float32) for node in range(4)])
            rings.collectives.fused_update(length)

        for link, operation in (((2, 0), (3, 0)), "reduce-scatter"), (((3, 1), (1, 1)), "fused-update"):
            cut = next(candidate for candidate in simulation.links if (candidate.source, candidate.target) == link)
            cut.cut()
            (source, port), (target, _) = link
            with pytest.raises(RingError, match=rf"{operation} on rings {port} failed: the link from port {port} of "
                                                rf"node {source} to port {port} of node {target} has not delivered"
                               ) as caught:
                update()
            assert caught.value.cause == source
            assert caught.value.events[target].status is EventStatus.INGRESS_TIMEOUT
            cut.mend()
            rings.recover()
            update()
            if name == "engines":  # sums of gradients are exact
                assert (rings.memory.read_weights(length) == 2.5).all()


def test_impossible_drivers():
    with open_grid(2, 2) as (grid, _):
        flat, both = grid.grid.plan(Shape.FLAT), grid.grid.plan(Shape.GRID)
        for call, message in (
                (lambda: GridNodes(grid.devices, rows=2, columns=3), "Devices of a 2 x 3 grid must be 6, not 4"),
                (lambda: grid.switch(Topology(2, 3).plan(Shape.FLAT)),
                 "Plan must be of the 4 nodes of this grid, not of 6"),
                (lambda: grid.ring(both), "Plan must be of one flat ring, not of shape grid"),
                (lambda: grid.rings(flat).collectives.fused_update(100),
                 "Plan must be of rings in two dimensions, not of shape flat"),
                (lambda: grid.rings(flat).collectives.all_reduce(100, ring=1),
                 "Ring must be one that all enabled nodes are in, not 1")):
            with pytest.raises(ValueError) as caught:  # noqa: PT011
                call()
            assert str(caught.value) == message


def test_round_a_slow_link():
    """A ring of all 2 x 4 nodes can avoid any single link and visit each node once. However slow the avoided link is,
    an update then takes at most 1.01 times as long as with equal links.
    """
    generator = np.random.default_rng(13)
    length = 1024
    with open_grid(2, 4, latency=16) as (grid, simulation):
        whole = grid.grid.plan(Shape.FLAT)
        gradients, weights = random(generator, (8, length)), random(generator, length)
        cycles = {}
        for number, link in enumerate([None, *grid.grid.links]):
            plan = whole if link is None else plan_of(grid, f"link{link[0]}:{link[1]}", Shape.FLAT)
            assert len(plan.order) == 8
            outputs = [source for setting in plan.settings for source in setting.outputs]
            assert sum(source is Source.ENGINE for source in outputs) == 8
            assert sum(source is Source.OFF for source in outputs) == 8
            if number % 5 == 0:  # with no slow link, and with each of three slow links out of the sixteen
                if link is not None:
                    simulation.links[number - 1].set_rate(1, 8)
                grid.switch(plan)
                ring = grid.ring(plan)
                ring.memory.write_gradients(list(gradients))
                ring.memory.write_weights(weights)
                ring.settings.write(Settings(gradient_scale=0.125, **MEAN))
                before = words_by_link(simulation)
                cycles[link] = ring.collectives.fused_update(length).cycles
                assert link is None or words_by_link(simulation)[number - 1] == before[number - 1]
                update = golden.fused_update(golden.bits(gradients), golden.bits(weights), [],
                                             golden.settings(Rule.SGD, gradient_scale=0.125, learning_rate=-1.0))
                assert (ring.memory.read_weights(length).view(np.uint32) == update.weights).all()
                if link is not None:
                    simulation.links[number - 1].set_rate(1, 1)
        assert len(cycles) == 4
        assert max(cycles.values()) <= 1.01 * cycles[None]
        # For comparison, run a ring that uses the slow link.
        slow = next((node, port) for node, port in grid.grid.links
                    if whole.settings[node].outputs[port] is Source.ENGINE)
        simulation.links[list(grid.grid.links).index(slow)].set_rate(1, 2)
        grid.switch(whole)
        ring = grid.ring(whole)
        ring.settings.write(Settings(gradient_scale=0.125, **MEAN))
        ring.memory.write_gradients(list(gradients))
        assert ring.collectives.fused_update(length).cycles > 1.8 * cycles[None]
