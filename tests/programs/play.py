"""Random programs on a simulated ring: the order of commands, their events and every word of memory are checked."""

import random
import time
from fractions import Fraction
from typing import Any

import numpy as np

from host.driver.ring import Ring
from host.features.programs.program import CompiledProgram, origin_of, spans
from sim.golden.features.programs.program import Span, remote_of
from sim.golden.features.programs.program_nodes import ProgramNodes
from sim.link_faults import RandomFaults
from sim.verilated.ring import VerilatedRing
from tests.host import rings
from tests.programs.generator import Case, centroids_of, random_case

#: Time-out in cycles of waits for words and commands. It is longer than several collectives take on slow links.
TIMEOUT = 1 << 16


class MismatchError(AssertionError):
    """Raised if events, starts of commands or memories of a ring differ from the model."""


def _memories(golden: ProgramNodes) -> dict[str, Any]:
    """Contents of all memories of the golden nodes, keyed by the memory's name."""
    return {"gradients": golden.gradients, "residuals": golden.residuals, "weights": golden.weights,
            "masters": golden.masters, "activations": golden.activations,
            **{f"state_{plane}": memory for plane, memory in enumerate(golden.state)}}


def _stall(ring: Ring, simulation: VerilatedRing, choose: random.Random, faults: float) -> None:
    """Delay links and inject faults at random, and make the host pop events late, between reads of memory."""
    for link in simulation.links:
        link.set_faults(RandomFaults(rate=faults, seed=choose.getrandbits(64)) if faults else None)
        link.set_latency(data=choose.randint(1, 60), credit=choose.randint(1, 60))
        link.set_rate(*choose.choice([(1, 1), (1, 1), (3, 4), (1, 2), (1, 5)]))
    if max(simulation.far_widths):
        rate = choose.choice([Fraction(1, 4), Fraction(1), Fraction(7, 3), Fraction(max(simulation.far_widths))])
        simulation.set_far_speed(latency=choose.choice([1, 16, 100]), rate=rate)
    if ring.devices[0].config.link.replay:  # the wires of the link now have another length
        ring.recover()
    late = choose.choice([0.0, 0.1, 0.5])
    for device in ring.devices:
        def pop(timeout: int, device: Any = device) -> Any:
            if choose.random() < late:
                simulation.run(choose.randrange(1_000))
            pending = type(device).submit_pop_event(device, timeout)
            if choose.random() < late:  # keeps the host port busy after the event
                device.submit_read_memory(choose.randrange(2), 0, choose.randrange(1, 200))
            return pending

        device.submit_pop_event = pop  # type: ignore[method-assign]


def _check_order(program: CompiledProgram, history: list[Span]) -> int:
    """Check that commands start only after their dependencies; return how many waited for other nodes."""
    ends = {(span.node, span.queue, span.number, span.place): span.end for span in history}
    remotes = 0
    for span in history:
        node, queue = span.node, program.queues[span.queue]
        before = ends.get((node, span.queue, *divmod(span.number * len(queue) + span.place - 1, len(queue))), 0)
        waits, remote = queue[span.place].waits, remote_of(queue[span.place].remotes, node)
        indices = [other for other in range(len(program.queues)) if other != span.queue]
        awaited = max((ends[node, other, span.number - wait.lag, wait.after - 1]
                       for other, wait in zip(indices, waits, strict=True) if wait.after and span.number >= wait.lag),
                      default=0)
        if remote is not None and span.number >= remote.lag:
            awaited = max(awaited, ends[remote.unit, remote.queue, span.number - remote.lag, remote.after - 1])
            remotes += remote.unit != node
        if span.start < max(before, awaited):
            raise MismatchError(f"{span} has started before {max(before, awaited)}")
    return remotes


def play(ring: Ring, simulation: VerilatedRing, case: Case, seed: int, *, faults: float = 0) -> tuple[int, int]:
    """Compare a program with the model; return the number of words compared, and of waits for other nodes."""
    program, golden, nodes = case.program, case.golden, ring.nodes
    memories = {name: memory for name, memory in _memories(golden).items()
                if name in ring.devices[0].config.memory_map}
    for name, memory in memories.items():
        ring.memory.write_space(name, list(memory))
    for rank, row in enumerate(golden.far if max(simulation.far_widths) else ()):
        simulation.far_memory(rank)[0][:len(row)] = row
    ring.settings.write(case.settings)
    ring.devices.write_register("WEIGHT_STRIDE", golden.weight_stride)
    ring.programs.load([program.commands(rank, nodes) for rank in range(nodes)])
    _stall(ring, simulation, random.Random(seed), faults)
    passes = ring.programs.run(collectives=program.collectives, passes=case.passes, parity=case.parity)
    expected = [entry.task.place for queue in program.queues for _ in range(case.passes) for entry in queue]
    for rank, events in enumerate(passes.events):
        if [event.tag for event in events] != expected:
            raise MismatchError(f"events of node {rank} are {events}")
    origin = origin_of(passes.traces)
    remotes = _check_order(program, [span for rank, trace in enumerate(passes.traces)
                                     for span in spans(trace, program, node=rank, origin=origin)])
    golden.run(program.placed(nodes), passes=case.passes, parity=case.parity, seed=seed)
    for name, memory in _memories(golden).items():
        if name not in memories:
            continue
        space = ring.devices[0].config.memory_map[name]
        words = np.stack(ring.devices.ask(lambda rank, device, space=space, memory=memory: device.submit_read_memory(
            space.number, 0, memory.shape[1])))
        if wrong := np.argwhere(words != memory)[:4].tolist():
            raise MismatchError("; ".join(
                f"{space.title} of node {node}, element {element}: 0x{words[node, element]:08x} in place of "
                f"0x{memory[node, element]:08x}" for node, element in wrong))
    for rank, row in enumerate(golden.far if max(simulation.far_widths) else ()):
        if wrong := np.argwhere(simulation.far_memory(rank)[0][:len(row)] != row)[:4, 0].tolist():
            raise MismatchError(f"far memory of node {rank}, elements {wrong}")
    return sum(memory.size for memory in memories.values()), remotes


def play_part(name: str, nodes: int, seed: int, count: int, *, remote: bool = False,
              faults: float = 0) -> dict[str, Any]:
    """Run programs up to the first difference; with ``remote``, commands also wait for other nodes."""
    began = time.process_time()
    config = rings.CONFIGS[name]
    summary: dict[str, Any] = {"ring": name, "nodes": nodes, "seed": seed, "programs": 0, "commands": 0, "words": 0,
                               "cycles": 0, "remote_waits": 0, "faults": 0, "difference": ""}
    with rings.open_nodes(nodes, config=config, host_port=False, timeout=TIMEOUT) as (ring, simulation):
        centroids = centroids_of(config)
        if centroids is not None:
            ring.memory.write_codebook(centroids)
        first = simulation.cycle
        for number in range(count):
            case = random_case(np.random.default_rng([*name.encode(), nodes, seed, number]), config, nodes,
                               remote=remote)
            try:
                words, remotes = play(ring, simulation, case, number, faults=faults)
                summary["words"] += words
                summary["remote_waits"] += remotes
            except Exception as error:
                commands = "\n".join(f"{task.name}: {task.operation}, queue {task.queue}, {dict(task.fields)}"
                                     for task in case.program.tasks)
                summary["difference"] = (f"{name}, {nodes} nodes, seed {seed}, program {number}, {case.passes} "
                                         f"passes: {error}\n{commands}")
                break
            summary["programs"] += 1
            summary["commands"] += case.passes * len(case.program.tasks)
        summary["cycles"] = simulation.cycle - first
        summary["faults"] = sum(link.faults().total for link in simulation.links)
    summary["cpu_seconds"] = time.process_time() - began
    return summary
