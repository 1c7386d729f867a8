"""Rings of links with replay: temporary faults are repaired, and errors after permanent faults name the link."""

import numpy as np
import pytest

from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Rule, Settings
from host.transports.session import TransportName, open_session
from sim.link_faults import RandomFaults
from tests.host import rings
from tests.host.rings import Reference, random

CONFIG = rings.CONFIGS["wide"]
LENGTH = 2000
SETTINGS = Settings(rule=Rule.MOMENTUM, gradient_scale=0.25, learning_rate=0.5, first_decay=0.9)
REPAIRS = ("LINK_RESTARTS", "WORDS_REPEATED", "CHECKS_FAILED")


def update(ring, reference, generator):
    """Run a fused update and compare it with the golden model; return its cycles."""
    gradients = random(generator, (ring.nodes, LENGTH), density=0.6)
    ring.memory.write_gradients(list(gradients))
    before = ring.counters.read()
    cycles = ring.collectives.fused_update(LENGTH).cycles
    traffic = reference.step(gradients, SETTINGS)
    reference.compare()
    sent = [now["WORDS_SENT"] - was["WORDS_SENT"] for was, now in zip(before, ring.counters.read(), strict=True)]
    assert sent == traffic.words.tolist()  # words that links send again are not counted
    return cycles


def start(ring, generator):
    weights = random(generator, LENGTH)
    ring.collectives.distribute(weights)
    ring.memory.clear_state(LENGTH)
    ring.settings.write(SETTINGS)
    return Reference(ring, weights, planes=1)


def outcome(*, rate, nodes=3, threads=1, quantum=16):
    """Run five updates; return the cycles of each update, total repair counts, and the faults of each link."""
    generator = np.random.default_rng(3)
    with rings.open_nodes(nodes, config=CONFIG, threads=threads, host_port=False) as (ring, simulation):
        simulation.set_quantum(quantum)
        simulation.set_faults(RandomFaults(rate=rate, seed=1))
        reference = start(ring, generator)
        cycles = [update(ring, reference, generator) for _ in range(5)]
        repairs = [sum(counters[name] for counters in ring.counters.read()) for name in REPAIRS]
        return cycles, repairs, [link.faults() for link in simulation.links]


def test_faults_mend():
    """On faulty links, no command fails and all bits are correct, for any number of threads or simulation quantum."""
    clean, repairs, faults = outcome(rate=0)
    assert repairs == [0, 0, 0]
    assert sum(link.total for link in faults) == 0
    runs = [outcome(rate=2e-3, threads=threads, quantum=quantum) for threads, quantum in ((1, 16), (2, 16), (2, 3))]
    assert runs[0] == runs[1] == runs[2]
    cycles, (restarts, repeated, failed), faults = runs[0]
    injected = sum(link.total for link in faults)
    assert injected > 20
    assert injected // 2 < failed <= injected
    assert injected // 2 < restarts < 2 * injected
    assert restarts < repeated < 200 * restarts
    assert sum(clean) < sum(cycles) < 1.5 * sum(clean)


@pytest.mark.parametrize("nodes", [2, 3])
def test_cuts(nodes):
    """A link that is cut only briefly is repaired. A link that stays cut is named, and the ring works after
    recovery."""
    generator = np.random.default_rng(nodes)
    with rings.open_nodes(nodes, config=CONFIG, timeout=1500) as (ring, simulation):
        reference = start(ring, generator)
        for link in range(nodes):
            cut = simulation.links[link]
            cut.cut(simulation.cycle + 5500, simulation.cycle + 5700)  # after the last write of the host
            update(ring, reference, generator)
            ring.memory.write_gradients(list(random(generator, (nodes, LENGTH))))
            cut.cut(simulation.cycle + 500)
            message = (rf"the link from node {link} to node {(link + 1) % nodes} has not delivered \d+ words, and "
                       "for 3,000 cycles no word has moved")
            with pytest.raises(RingError, match=message) as caught:
                ring.collectives.all_reduce(LENGTH)
            assert caught.value.cause == link
            cut.mend()
            ring.recover()
            update(ring, reference, generator)


def test_a_link_that_is_cut_from_the_beginning():
    """The error names the link that was cut, even if the link has never delivered a word."""
    with rings.open_nodes(3, config=CONFIG, timeout=1500) as (ring, simulation):
        simulation.links[1].cut()
        ring.recover()
        ring.memory.write_gradients(list(np.ones((3, LENGTH), dtype=np.float32)))
        with pytest.raises(RingError, match="the link from node 1 to node 2 has not delivered") as caught:
            ring.collectives.all_reduce(LENGTH)
        assert caught.value.cause == 1


@pytest.mark.parametrize("latency", [1, 16, 45, 200])
def test_delay(latency):
    """Each node measures the latency of its link to the next node."""
    with rings.open_nodes(3, config=CONFIG, latency=latency) as (ring, simulation):
        for link in simulation.links:
            link.set_latency(data=latency + 2 * link.index, credit=latency + 2 * link.index)
        ring.recover()
        simulation.run(1500)
        assert [device.read_register("LINK_DELAY") for device in ring.devices] == [
            latency + 2 * index for index in range(3)]


def test_a_fault_while_the_link_is_reset():
    """START, the first word after a link reset, is sent again if it is lost."""
    generator = np.random.default_rng(5)
    with rings.open_nodes(2, config=CONFIG) as (ring, simulation):
        reference = start(ring, generator)
        for link in simulation.links:
            link.cut(simulation.cycle, simulation.cycle + 3000)
        ring.recover()
        simulation.run(3000)
        update(ring, reference, generator)


def test_sessions():
    """Invalid options for links with replay or for faults are rejected before anything is built."""
    with pytest.raises(ValueError, match=r"^Latency of links with replay must be at most 480 cycles, not 481$"), \
            open_session(CONFIG, nodes=2, latency=481):
        pass
    message = r"^Transport must be verilated or pysim for faults of links, not board$"
    with pytest.raises(ValueError, match=message), \
            open_session(CONFIG, nodes=2, transport=TransportName.BOARD, faults=RandomFaults(rate=0.1)):
        pass
