"""Run two jobs on one ring, and measure one job's commands while the other job is idle, runs, stalls or fails.

The lab prints the tables of docs/ring/slots.md, and fails if a cycle count depends on the other job.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hdl.board import node_of
from hdl.config import Memories, NodeConfig, Peer
from hdl.control.protocol import Operation
from hdl.features.programs.feature import Programs
from hdl.features.slots.feature import JobSlots, Slots
from hdl.features.slots.job_table import JOBS, JobFrame
from host.columns import Column, Table, show
from host.driver.command_queueing import PendingCommand
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import Outcome, known
from host.driver.ring import Ring
from host.driver.transport import Transport
from host.driver.words import Words
from host.features.slots.rings import rings_of_jobs
from host.labs.kit import end
from host.training.reference import Reference
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.session import LATENCY, open_session
from host.transports.verilated import OpenRing
from sim.golden import ring as golden
from sim.verilated.build import Library, build_ring

__all__ = ["BEHAVIOURS", "CONFIG", "Jobs", "measure", "open_jobs", "two_jobs_lab"]

#: Node configurations for two jobs that share the ring, and for a single job with its own ring.
CONFIG = NodeConfig(memories=Memories(planes=0), masking=False, sparsify=False, link=JobSlots(ingress=15),
                    role=Peer(interleaved=True), programs=Programs())
ALONE = CONFIG.replace(link=Slots(ingress=15))

#: Maximum ratio of two simultaneous jobs' cycles to their cycles in sequence, on nodes with separate slots.
MOST = 1.20

_NODES = 8
_SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.25, learning_rate=0.5)

#: Commands of the measured job.
OPERATIONS = (Operation.FUSED_UPDATE, Operation.ALL_REDUCE, Operation.BROADCAST)


class _LateTransport:
    """Transport that delays requests by ``late`` cycles, or not at all if ``late`` is 0."""

    def __init__(self, transport: Transport, run: Callable[[int], int]) -> None:
        self._transport, self._run, self._held = transport, run, list[Words]()
        self.late = 0

    def send(self, packet: Words) -> None:
        if self.late:
            self._held.append(packet)
        else:
            self._transport.send(packet)

    def receive(self, timeout_cycles: int) -> Words:
        if self._held:
            self._run(self.late)
            self.late = 0
            for packet in self._held:
                self._transport.send(packet)
            self._held.clear()
        return self._transport.receive(timeout_cycles)

    def close(self) -> None:
        self._transport.close()


@dataclasses.dataclass
class Jobs:
    """Two jobs that share a simulated ring."""

    #: The ring of each job, on the same nodes.
    rings: list[Ring]
    simulation: Any
    #: Transports to all nodes, which can delay requests to them.
    late: list[_LateTransport]
    config: NodeConfig
    timeout: int  # number of cycles after which nodes stop waiting for each other

    def run_until(self, cycle: int) -> None:
        """Run the simulation until it reaches a cycle."""
        if cycle < self.simulation.cycle:
            raise ValueError(f"Cycle must be one to come, from {self.simulation.cycle} on, not {cycle}")
        self.simulation.run(cycle - self.simulation.cycle)

    def await_packet(self, job: int) -> tuple[int, int]:
        """Run until the first node of the job sends in a slot. Returns the number of that node, and the index of a
        word that it sends soon afterwards, in the same packet."""
        frame, node = JobFrame.of(self.config), job
        link = self.simulation.links[node]
        for _ in range(100):
            # TIME of rank 0 equals the cycle number; slots start one link latency later at each successive node.
            now = self.simulation.cycle % frame.cycles
            target = frame.window + job * (frame.slot + LATENCY + 1) + 12
            self.simulation.run((target - now) % frame.cycles or frame.cycles)
            before = link.status().words_sent
            self.simulation.run(4)
            if link.status().words_sent == before + 4:
                return node, before + 6
        raise AssertionError("no packet came")


@contextlib.contextmanager
def open_jobs(config: NodeConfig, library: Library, *, nodes: int = _NODES) -> Iterator[Jobs]:
    """Start both jobs on a simulated ring, with a time-out of two superframes and direct memory access."""
    timeout = 2 * JobFrame.of(config).cycles
    with OpenRing([library] * nodes) as opened:
        simulation = opened.simulation
        for link in simulation.links:
            link.set_latency(data=LATENCY, credit=LATENCY)
        time = PortTime(lambda: simulation.cycle)
        late = [_LateTransport(transport, simulation.run) for transport in opened.transports]
        devices = [Device(BackdoorTransport(transport, simulation, rank, config, time), config, name=f"node {rank}")
                   for rank, transport in enumerate(late)]
        yield Jobs(rings_of_jobs(devices, timeout=timeout), simulation, late, config, timeout)


class _Work:
    """Commands of a job, with results that are compared bit for bit with the golden model."""

    def __init__(self, ring: Ring, length: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.ring, self._length = ring, length
        self._gradients = list(generator.standard_normal((ring.nodes, length)).astype(np.float32))
        self._reference = Reference(ring, generator.standard_normal(length).astype(np.float32), 0)
        self._sums = golden.all_reduce(golden.bits(np.stack(self._gradients)))[0]

    def submit(self, operation: Operation) -> PendingCommand[Outcome]:
        """Write a command's weights and gradients to the nodes' memories, and queue the command."""
        self.ring.settings.write(_SETTINGS)
        self.ring.memory.write_weights(self._reference.weights.view(np.float32))
        self.ring.memory.write_gradients(self._gradients)
        return self.ring.collectives.submit(operation, self._length, root=int(operation == Operation.BROADCAST))

    def finish(self, pending: PendingCommand[Outcome]) -> tuple[int, ...]:
        """Wait for a command, compare its results bit for bit, and return the cycles of each node."""
        pending.result()
        if pending.operation == Operation.FUSED_UPDATE:
            self._reference.step(self._gradients, _SETTINGS)
        actual, expected = self.ring.memory.read_weights(self._length), self._reference.weights
        if pending.operation == Operation.ALL_REDUCE:
            actual, expected = self.ring.memory.read_gradients(self._length), self._sums
        if not (actual.view(np.uint32) == expected).all():
            raise AssertionError(f"Bits of {pending.operation.name} must be those of the golden model")
        return tuple(known(event.cycles) for event in pending.every if event is not None)


def _runs(jobs: Jobs, work: _Work, job: int) -> None:
    for operation in (Operation.ALL_REDUCE, Operation.FUSED_UPDATE):
        work.finish(work.submit(operation))


def _stalls(jobs: Jobs, work: _Work, job: int) -> None:
    """Silence the host of one node for a while, so that the node receives its command late."""
    jobs.late[job + JOBS].late = jobs.timeout * 3 // 4
    work.finish(work.submit(Operation.FUSED_UPDATE))


def _damaged(jobs: Jobs, work: _Work, job: int) -> None:
    """Damage packets so that the command fails, and run the command again."""
    for bit in (7, 32):  # damage a data bit, then the last bit of a packet
        pending = work.submit(Operation.FUSED_UPDATE)
        link, word = jobs.await_packet(job)
        jobs.simulation.links[link].corrupt(word=word, bit=bit)
        _must_fail(pending, "with a damaged packet")
    work.finish(work.submit(Operation.FUSED_UPDATE))


def _resets(jobs: Jobs, work: _Work, job: int) -> None:
    """Reset links in the middle of a packet: first on all nodes of the job, and later on one node."""
    pending = work.submit(Operation.FUSED_UPDATE)
    jobs.await_packet(job)
    work.ring.recover()
    _must_fail(pending, "whose links are reset")
    pending = work.submit(Operation.FUSED_UPDATE)
    jobs.await_packet(job)
    for value in (1, 0):
        work.ring.devices[0].write_register("CONTROL", value)
    _must_fail(pending, "whose links are reset")
    work.ring.recover()
    work.finish(work.submit(Operation.FUSED_UPDATE))


def _must_fail(pending: PendingCommand[Outcome], which: str) -> None:
    with contextlib.suppress(RingError):
        pending.result()
        raise AssertionError(f"A command {which} must fail")


#: What the other job does while a command of the measured job runs, keyed by the name of the behaviour.
BEHAVIOURS: dict[str, Callable[[Jobs, _Work, int], None]] = {
    "rests": lambda jobs, work, job: None, "runs": _runs, "stalls": _stalls, "fails: damage": _damaged,
    "fails: reset": _resets}


def measure(config: NodeConfig, library: Library, job: int, *, length: int, nodes: int = _NODES,
            operations: Sequence[Operation] = OPERATIONS) -> dict[str, dict[str, tuple[int, ...]]]:
    """Measure the cycles of each command of a job on each of its nodes, for each behaviour of the other job. Each
    measurement uses a new ring, on which the job's commands start in the same cycles. The result also contains all
    counters."""
    result: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, behave in BEHAVIOURS.items():
        with open_jobs(config, library, nodes=nodes) as jobs:
            works = [_Work(ring, length, seed) for seed, ring in enumerate(jobs.rings)]
            jobs.rings[job].counters.clear()
            begin, cycles = jobs.simulation.cycle + 2 * JobFrame.of(config).cycles, {}
            span = 8 * length + 12 * jobs.timeout  # cycles from one command of the measured job to the next
            for number, operation in enumerate(operations):
                jobs.run_until(begin + number * span)
                pending = works[job].submit(operation)
                behave(jobs, works[1 - job], 1 - job)
                cycles[f"{number + 1} {operation.name.lower().replace('_', '-')}"] = works[job].finish(pending)
            jobs.run_until(begin + len(operations) * span)
            cycles["counters"] = tuple(value for node in jobs.rings[job].counters.read() for value in node.values())
            result[name] = cycles
    return result


def table(job: int, cycles: dict[str, dict[str, tuple[int, ...]]], length: int) -> Table:
    """Format the cycles of a job's commands on the slowest node as a table, for each behaviour of the other job."""
    rest = cycles["rests"]
    commands = [name for name in rest if name != "counters"]

    def differing(name: str) -> str:
        names = [key for key, value in cycles[name].items() if value != rest[key]]
        return f"differs: {', '.join(names)}" if names else "equal"

    return Table(f"job {job} of {_NODES // JOBS} nodes, {length:,} elements: cycles on the slowest node", (
        Column("other", title="other job", of=str),
        *(Column(command, format=",", of=functools.partial(lambda command, name: max(cycles[name][command]), command))
          for command in commands),
        Column("compared", of=differing)), list(cycles), marked=lambda name: cycles[name] != rest)


def two_jobs_lab() -> None:
    """Measure the cycles of each of two jobs on a ring while the other one works, stalls or fails."""
    library, length = build_ring(node_of(CONFIG)), 16384
    differ, both = False, 0
    for job in range(JOBS):
        cycles = measure(CONFIG, library, job, length=length)
        show(table(job, cycles, length))
        differ |= any(values != cycles["rests"] for values in cycles.values())
        both = max(both, max(max(value) for key, value in cycles["rests"].items() if "fused" in key))
    with open_session(ALONE, nodes=_NODES // JOBS, host_port=False, latency=LATENCY) as session:
        work = _Work(session.ring, length, 0)
        single = max(work.finish(work.submit(Operation.FUSED_UPDATE)))
    ratio = both / (JOBS * single)
    show(f"Fused updates of both jobs together take {both:,} cycles, one after the other on rings of "
         f"{_NODES // JOBS} nodes with slots of their own {JOBS * single:,}: {ratio:.3f} times as many, at most "
         f"{MOST:.2f}")
    end(differ or ratio > MOST)
