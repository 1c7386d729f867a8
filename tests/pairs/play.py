"""Batches of queued commands on a simulated ring, compared with the model word by word."""

import collections
import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command, Event, ProgramRun
from host.driver.device import Device
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.transports.verilated import OpenRing
from sim.golden import optimizer
from sim.golden import ring as golden
from sim.verilated.build import Library
from tests.pairs.generator import LATCHED_FLAG, Generator, Step
from tests.pairs.memories import CONFIG, contents
from tests.pairs.model import Change, Model

#: Time-out in cycles of a node that waits for a word, and of a command that waits for its flags.
TIMEOUT = 2_000

#: Time-out in cycles for queues that wait for each other. It is longer than a whole batch takes.
PATIENT = 1_000_000

_DEPTH = 8  # number of commands that fit in a node's queue
_UPDATES = (Operation.FUSED_UPDATE, Operation.ALL_GATHER, Operation.BROADCAST)
_TIME_OUTS = (EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT, EventStatus.WAIT_TIMEOUT)


class MismatchError(AssertionError):
    """Raised if events or memories of a node differ from the model."""


class Player:
    """Player of batches of random commands on one ring, which keeps the contents of memories between batches."""

    def __init__(self, library: Library, *, nodes: int, seed: int) -> None:
        self.nodes = nodes
        self.seed = seed
        self.generator = Generator(nodes, seed)
        self.compared = 0  # number of words compared so far
        self._random = random.Random(seed + 1)
        self._batch = 0
        self._versions = [0] * nodes  # weight version of each node
        self._opened = OpenRing(library, nodes=nodes, threads=1)
        self._ring = Ring([Device(transport, CONFIG, name=f"node {node}")
                           for node, transport in enumerate(self._opened.transports)], timeout=TIMEOUT)
        self._ring.connect()
        self._refill()

    def close(self) -> None:
        self._opened.close()

    @property
    def pairs(self) -> int:
        """Number of pairs of successive commands drawn so far."""
        return sum(count for (first, _), count in self.generator.pairs.items() if first)

    def _refill(self) -> None:
        """Fill the memories with new random contents."""
        memories, self.generator.programs = contents(self._random.getrandbits(32), self.nodes)
        self._model = Model(memories, segment=CONFIG.segment, lanes=CONFIG.lanes, rows=CONFIG.compute.rows)
        for space, memory in enumerate(memories):
            self._ring.devices.ask(lambda rank, device, space=space, memory=memory: device.submit_write_memory(
                space, 0, memory[rank]))

    def _optimize(self, rule: Rule) -> optimizer.Settings:
        """Write random settings of the optimizer, which the next LATCH copies."""
        choose = self._random
        scalars = {"gradient_scale": choose.choice([1.0, 0.25, -0.5]), "learning_rate": choose.choice([0.5, 0.125])}
        if rule is Rule.MOMENTUM:
            scalars["first_decay"] = choose.choice([0.5, 0.75])
        self._ring.settings.write(Settings(rule=rule, **scalars))
        return golden.settings(rule, **scalars)

    def _settle(self, *, patient: bool) -> None:
        """Write random settings, and clear flags that earlier commands have left set."""
        choose, ring = self._random, self._ring
        self._rule = choose.choice([Rule.SGD, Rule.MOMENTUM])
        self._settings = [self._optimize(self._rule)]
        self.generator.weight_stride = choose.choice([0, 32, 96])
        ring.devices.write_register("WEIGHT_STRIDE", self.generator.weight_stride)
        ring.devices.write_register("TIMEOUT", PATIENT if patient else TIMEOUT)
        for device in ring.devices:
            device.push(Command(operation=Operation.QUIESCE, wait=device.read_register("FLAGS")))
            if (event := device.pop_event(TIMEOUT)) is None or event.status is not EventStatus.OK:
                raise MismatchError(f"flags are not taken: {event}")
        self._alternative, threshold = choose.choice([0.0, -10000.0]), choose.choice([0.25, 1.0])
        self._threshold = int(golden.bits([threshold])[0])
        self._ring.devices.write_register("MASK_ALTERNATIVE", self._alternative)
        self._ring.devices.write_register("MASK_THRESHOLD", threshold)

    def batch(self) -> None:
        """Queue some commands, wait for them, and compare events and memories; raise :class:`MismatchError` on a
        difference."""
        choose = self._random
        self._batch += 1
        if self._batch % 8 == 0 or any(np.count_nonzero(~np.isfinite(golden.floats(memory))) > memory.size // 20
                                       for memory in self._model.memories):
            self._refill()
        ending = choose.choice(["well", "well", "reset", "time-out" if self.nodes > 1 else "well"])
        patient = ending != "time-out" and choose.random() < 0.7
        self._settle(patient=patient)
        self.generator.begin(patient=patient, ring=ending == "time-out")
        steps = [self.generator.step() for _ in range(choose.randrange(2, _DEPTH))]
        absent = None
        if ending == "time-out":
            steps.append(self.generator.step(ring=True))
            absent = choose.randrange(self.nodes)
        try:
            self._play(steps, ending, absent)
        except Exception as error:
            listed = "\n".join(f"{step.kind}: {step.commands}" for step in steps)
            raise MismatchError(f"{self.nodes} nodes, seed {self.seed}, batch {self._batch}, ending {ending}, "
                                f"without {absent}: {error}\n{listed}") from error

    def _play(self, steps: list[Step], ending: str, absent: int | None) -> None:
        ring = self._ring
        pending = []
        for number, step in enumerate(steps):
            for node, device in enumerate(ring.devices):
                if step.kind == "load_program":
                    pending += [device.submit_load_program(queue, [
                        item.commands[node] for item in step.program if item.queue == queue], **step.options)
                        for queue in range(CONFIG.queues)]
                elif step.kind == "run":
                    pending.append(device.submit_run(ProgramRun(**step.options)))
                elif number < len(steps) - (node == absent):
                    pending.append(device.submit_push(step.commands[node]))
            if any(item.latches for item in step.program) and step.kind == "run":
                self._settings.append(self._optimize(self._rule))
                ring.devices.write_register("FLAGS", LATCHED_FLAG)
        for item in pending:
            item.result()
        if ending == "reset":
            self._opened.simulation.run(self._random.randrange(1_500))
            ring.devices.write_register("CONTROL", 1)
        # Commands in the order of their creation, leaving out those that neither change memory nor are rejected.
        played = [item for step in steps for item in (step.program if step.kind in ("load_program", "run")
                  else [step]) if step.kind != "load_program"]
        events = [self._sort(node, played[:len(played) - (node == absent)], actual, lacking=ending == "reset")
                  for node, actual in enumerate(self._pop(len(played), absent, lacking=ending == "reset"))]
        if ending != "well":
            ring.recover()
        possible = list(self._expect(played, events, ending))
        actual = [np.stack(ring.devices.ask(lambda rank, device, space=space, words=words: device.submit_read_memory(
            space, 0, words))) for space, words in enumerate(CONFIG.memory_map.words[:len(self._model.memories)])]
        self.compared += sum(memory.size for memory in actual)
        wrong = self._model.differences(actual, possible)
        if wrong:
            raise MismatchError("; ".join(wrong))
        if ending == "reset":
            ended = [step.kind for number, step in enumerate(played)
                     if any(own[number] is not None and own[number].status is EventStatus.LINK_RESET
                            for own in events)]
            if ended:
                self.generator.last = f"{ended[0]}, reset"
        elif absent is not None:
            self.generator.last += ", timed out"

    def _pop(self, count: int, absent: int | None, *, lacking: bool) -> list[list[Event]]:
        """Pop ``count`` events from each node; with ``lacking``, only until no more events arrive."""
        events: list[list[Event]] = [[] for _ in range(self.nodes)]
        left = {node: count - (node == absent) for node in range(self.nodes)}
        while ranks := [node for node in left if left[node]]:
            popped = self._ring.devices.ask(lambda rank, device: device.submit_pop_event(20 * TIMEOUT), ranks)
            for node, event in zip(ranks, popped, strict=True):
                if event is None and not lacking:
                    raise MismatchError(f"node {node} has no more events than {events[node]}")
                if event is not None:
                    events[node].append(event)
                left[node] = left[node] - 1 if event is not None else 0
        return events

    def _sort(self, node: int, played: list[Step], events: list[Event], *, lacking: bool) -> list[Event | None]:
        """Match a node's events to its commands. In each queue, events must arrive in the order of commands."""
        indices = collections.defaultdict(collections.deque)
        for number, step in enumerate(played):
            indices[step.commands[node].tag].append(number)
        sorted_events: list[Event | None] = [None] * len(played)
        latest = [-1] * CONFIG.queues
        for event in events:
            if not indices[event.tag]:
                raise MismatchError(f"node {node} has an event that is of no command: {event}")
            number = indices[event.tag].popleft()
            if event.queue != played[number].queue or number < latest[event.queue]:
                raise MismatchError(f"node {node} has an event out of order, of command {number}: {event}")
            latest[event.queue] = number
            sorted_events[number] = event
        for number, event in enumerate(sorted_events):
            if event is None and not (lacking and played[number].of_program):
                raise MismatchError(f"node {node} has no event of {played[number].kind}")
        return sorted_events

    def _expect(self, played: list[Step], events: list[list[Event | None]], ending: str) -> Iterator[Change]:
        """Check events, apply commands to the model, and yield the changes that a failed command may have made."""
        over = set[int]()  # nodes on which later commands may end with a status other than OK
        before, settings = list(self._versions), self._settings[0]
        latest = [[EventStatus.OK] * CONFIG.queues for _ in range(self.nodes)]
        for number, step in enumerate(played):
            seen = {node: own[number] for node, own in enumerate(events) if number < len(own)}
            # If a command of a program never starts, it has no event.
            statuses = {node: EventStatus.LINK_RESET if event is None else EventStatus(event.status)
                        for node, event in seen.items()}
            well = [node for node, status in statuses.items() if status is EventStatus.OK]
            for node in well:
                self._versions[node] += step.commands[node].operation in _UPDATES
                # While an event waits for space, a command in the second queue may already have changed weights.
                early = step.queue == 0 and seen[node].weight_version > self._versions[node]
                if seen[node].weight_version != self._versions[node] and not early:
                    raise MismatchError(f"{step.kind} has weight version {seen[node].weight_version} on node {node}, "
                                        f"and not {self._versions[node]}")
            if ending == "reset":
                over |= {node for node, status in statuses.items() if status is EventStatus.LINK_RESET}
                # Nodes that are reset in different cycles also report link errors caused by each other.
                over |= {node for node in statuses if over and step.status is EventStatus.OK and node not in well}
            elif ending == "time-out" and number == len(played) - 1:
                over = set(range(self.nodes))
            self._judge(step, statuses, over, latest, ending)
            if step.status is EventStatus.OK or step.status is None:
                settings = self._settings[-1] if step.latches else settings
                yield from self._change(step, seen, well, settings)
        for node, own in enumerate(events):
            if any(event is not None and not before[node] <= event.weight_version <= self._versions[node]
                   for event in own):
                raise MismatchError(f"node {node} has a weight version that is not in {before[node]} to "
                                    f"{self._versions[node]}: {own}")

    def _judge(self, step: Step, statuses: dict[int, EventStatus], over: set[int],
               latest: list[list[EventStatus]], ending: str) -> None:
        """Compare the statuses of a command with the expected statuses."""
        for node, status in statuses.items():
            earlier, latest[node][step.queue] = latest[node][step.queue], status
            if node in over:
                if status is EventStatus.OK and ending == "reset" and earlier is EventStatus.LINK_RESET:
                    raise MismatchError(f"{step.kind} behind a reset has run on node {node}")
            elif step.status is None:
                if status is EventStatus.OK or status in _TIME_OUTS:
                    raise MismatchError(f"{step.kind} ended with {status.name} on node {node}")
            elif status is not step.status:
                raise MismatchError(f"{step.kind} ended with {status.name} on node {node}, and not with "
                                    f"{step.status.name}")

    def _change(self, step: Step, events: dict[int, Event | None], well: list[int],
                settings: optimizer.Settings) -> Iterator[Change]:
        """Apply a command to the model; yield changes that it may have made on nodes where it did not end with OK."""
        changes, details = self._model.changes(
            step.commands, self.generator.programs, settings,
            alternative=int(golden.bits([self._alternative])[0]), threshold=self._threshold)
        self._model.apply(changes, well)
        yield from (change for change in changes if change.node not in well)
        for node in well:
            local = step.commands[node].operation in (Operation.MASK, Operation.SPARSIFY, Operation.INFER,
                                                      Operation.COMPUTE, Operation.LAYERS)
            if local and events[node].detail != details[node]:
                raise MismatchError(f"{step.kind} has detail {events[node].detail} on node {node}, and not "
                                    f"{details[node]}")


def play_part(library: Library, nodes: int, seed: int, count: int) -> dict[str, Any]:
    """Play at least ``count`` pairs, or up to the first mismatch, and return a summary."""
    began = time.process_time()
    with contextlib.closing(Player(library, nodes=nodes, seed=seed)) as player:
        difference = ""
        try:
            while player.pairs < count:
                player.batch()
        except MismatchError as error:
            difference = str(error)
        kinds = [[first, second, number] for (first, second), number in player.generator.pairs.items() if first]
        return {"nodes": nodes, "seed": seed, "pairs": player.pairs, "words": player.compared, "kinds": kinds,
                "difference": difference, "cpu_seconds": time.process_time() - began}
