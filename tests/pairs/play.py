"""Batches of queued commands on a simulated ring, compared with the model word by word."""

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Event
from host.driver.device import Device
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.transports.verilated import OpenRing
from sim.golden import ring as golden
from sim.verilated.build import Library
from tests.pairs.generator import CONFIG, Generator, Step, contents
from tests.pairs.model import Change, Model

__all__ = ["MismatchError", "Player", "play_part", "playing"]

#: Time-out in cycles, for the wait of a node for a word and for the wait of a command for its flags.
TIMEOUT = 2_000

_DEPTH = 8  # commands in a node's queue
_UPDATES = (Operation.FUSED_UPDATE, Operation.ALL_GATHER, Operation.BROADCAST)
_TIME_OUTS = (EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT, EventStatus.WAIT_TIMEOUT)


class MismatchError(AssertionError):
    """Error for a node whose events or memories differ from the model."""


class Player:
    """Player of batches of commands on one ring, each of which starts from the memories that the previous one left.

    Parameters
    ----------
    library : Library
        Ring of nodes of :data:`tests.pairs.generator.CONFIG`.
    nodes : int
    seed : int
        Seed of all random choices.

    Members
    -------
    generator : Generator
        Generator of the commands, with the pairs so far.
    compared : int
        Number of words compared.
    """

    def __init__(self, library: Library, *, nodes: int, seed: int) -> None:
        self.nodes = nodes
        self.seed = seed
        self.generator = Generator(nodes, seed)
        self.compared = 0
        self._random = random.Random(seed + 1)
        self._batch = 0
        self._versions = [0] * nodes  # number of commands that have changed weights
        self._opened = OpenRing(library, nodes=nodes, threads=1)
        self._ring = Ring([Device(transport, CONFIG, name=f"node {node}")
                           for node, transport in enumerate(self._opened.transports)], timeout=TIMEOUT)
        self._ring.connect()
        self._refill()

    def close(self) -> None:
        """Free the simulation."""
        self._opened.close()

    @property
    def pairs(self) -> int:
        """Number of commands that have followed another."""
        return sum(count for (first, _), count in self.generator.pairs.items() if first)

    def _refill(self) -> None:
        """Fill the memories with new random contents."""
        memories, self.generator.programs = contents(self._random.getrandbits(32), self.nodes)
        self._model = Model(memories, segment=CONFIG.segment, lanes=CONFIG.lanes)
        for space, memory in enumerate(memories):
            self._ring._all(lambda rank, device, space=space, memory=memory: device.submit_write_memory(
                space, 0, memory[rank]))

    def _settle(self) -> None:
        """Write new random settings."""
        choose = self._random
        scalars = {"gradient_scale": choose.choice([1.0, 0.25, -0.5]), "learning_rate": choose.choice([0.5, 0.125])}
        rule = choose.choice([Rule.SGD, Rule.MOMENTUM])
        if rule is Rule.MOMENTUM:
            scalars["first_decay"] = choose.choice([0.5, 0.75])
        self._settings = golden.settings(rule, **scalars)
        self._ring.write_settings(Settings(rule=rule, **scalars))
        self._alternative, threshold = choose.choice([0.0, -10000.0]), choose.choice([0.25, 1.0])
        self._threshold = int(golden.bits([threshold])[0])
        self._ring._write_register("MASK_ALTERNATIVE", self._alternative)
        self._ring._write_register("MASK_THRESHOLD", threshold)

    def batch(self) -> None:
        """Queue some commands, wait for all of them, and compare events and memories.

        Raises
        ------
        MismatchError
            If they differ from the model; the message has the seed, the batch, its commands, and the differences.
        """
        choose = self._random
        self._batch += 1
        if self._batch % 8 == 0 or any(np.count_nonzero(~np.isfinite(golden.floats(memory))) > memory.size // 20
                                       for memory in self._model.memories):
            self._refill()
        self._settle()
        self.generator.begin()
        ending = choose.choice(["well", "well", "reset", "time-out" if self.nodes > 1 else "well"])
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
        given = [len(steps) - (node == absent) for node in range(self.nodes)]
        pushed = [device.submit_push(step.commands[node]) for number, step in enumerate(steps)
                  for node, device in enumerate(ring.devices) if number < given[node]]
        for pending in pushed:
            pending.result()
        if ending == "reset":
            self._opened.simulation.run(self._random.randrange(1_500))
            ring._write_register("CONTROL", 1)
        patience = 20 * TIMEOUT
        events: list[list[Event | None]] = [[] for _ in range(self.nodes)]
        for number in range(len(steps)):
            ranks = [node for node in range(self.nodes) if number < given[node]]
            for node, event in zip(ranks, ring._all(lambda rank, device: device.submit_pop_event(patience), ranks),
                                   strict=True):
                events[node].append(event)
        if ending != "well":
            ring.recover()
        possible = list(self._expect(steps, events, ending))
        found = [np.stack(ring._all(lambda rank, device, space=space, words=words: device.submit_read_memory(
            space, 0, words))) for space, words in enumerate(CONFIG.memories.words)]
        self.compared += sum(memory.size for memory in found)
        wrong = self._model.differences(found, possible)
        if wrong:
            raise MismatchError("; ".join(wrong))
        if ending == "reset":
            ended = [step.kind for number, step in enumerate(steps)
                     if any(mine[number].status is EventStatus.LINK_RESET for mine in events)]
            if ended:
                self.generator.last = f"{ended[0]}, reset"
        elif absent is not None:
            self.generator.last += ", timed out"

    def _expect(self, steps: list[Step], events: list[list[Event | None]], ending: str) -> Iterator[Change]:
        """Check the events, apply the commands to the model, and yield the possible changes of those not ended OK."""
        over = set[int]()  # nodes whose commands from here on need not end with OK
        for number, step in enumerate(steps):
            mine = {node: found[number] for node, found in enumerate(events) if number < len(found)}
            if None in mine.values():
                raise MismatchError(f"no event of {step.kind}: {mine}")
            tags = {event.tag for event in mine.values()}
            if tags != {step.commands[0].tag}:
                raise MismatchError(f"tags {tags} of {step.kind}, and not {step.commands[0].tag}")
            statuses = {node: EventStatus(event.status) for node, event in mine.items()}
            well = [node for node, status in statuses.items() if status is EventStatus.OK]
            for node, event in mine.items():
                self._versions[node] += node in well and step.commands[node].operation in _UPDATES
                if event.weight_version != self._versions[node]:
                    raise MismatchError(f"{step.kind} has weight version {event.weight_version} on node {node}, and "
                                        f"not {self._versions[node]}")
            last = number == len(steps) - 1
            if ending == "reset":
                over |= {node for node, status in statuses.items() if status is EventStatus.LINK_RESET}
                # Nodes that are not reset in the same cycle report errors of each other.
                over |= {node for node in statuses if over and step.status is EventStatus.OK and node not in well}
            elif ending == "time-out" and last:
                over = set(range(self.nodes))
            for node, status in statuses.items():
                if node in over:
                    if node in well and number and ending == "reset" and events[node][number - 1].status is (
                            EventStatus.LINK_RESET):
                        raise MismatchError(f"{step.kind} behind a reset has run on node {node}")
                elif step.status is None:
                    if status is EventStatus.OK or status in _TIME_OUTS:
                        raise MismatchError(f"{step.kind} ended with {status.name} on node {node}")
                elif status is not step.status:
                    raise MismatchError(f"{step.kind} ended with {status.name} on node {node}, and not with "
                                        f"{step.status.name}")
            if step.status is EventStatus.OK or step.status is None:
                changes, details = self._model.changes(
                    step.commands, self.generator.programs, self._settings,
                    alternative=int(golden.bits([self._alternative])[0]), threshold=self._threshold)
                self._model.apply(changes, well)
                yield from (change for change in changes if change.node not in well)
                for node in well:
                    local = step.commands[node].operation in (Operation.MASK, Operation.SPARSIFY, Operation.INFER,
                                                              Operation.COMPUTE)
                    if local and mine[node].detail != details[node]:
                        raise MismatchError(f"{step.kind} has detail {mine[node].detail} on node {node}, and not "
                                            f"{details[node]}")


@contextlib.contextmanager
def playing(library: Library, *, nodes: int, seed: int) -> Iterator[Player]:
    """Context manager for a player whose simulation is freed at the end."""
    player = Player(library, nodes=nodes, seed=seed)
    try:
        yield player
    finally:
        player.close()


def play_part(library: Library, nodes: int, seed: int, count: int) -> dict[str, Any]:
    """Play at least ``count`` pairs, or up to the first difference, and return a summary."""
    began = time.process_time()
    with playing(library, nodes=nodes, seed=seed) as player:
        difference = ""
        try:
            while player.pairs < count:
                player.batch()
        except MismatchError as error:
            difference = str(error)
        kinds = [[first, second, number] for (first, second), number in player.generator.pairs.items() if first]
        return {"nodes": nodes, "seed": seed, "pairs": player.pairs, "words": player.compared, "kinds": kinds,
                "difference": difference, "cpu_seconds": time.process_time() - began}
