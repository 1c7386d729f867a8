# amaranth: UnusedElaboratable=no
"""All-reduces and fused updates of simulated nodes, with single-bit flips in the gateware.

Each flip runs in its own process: while a command runs, the process forks in the cycle of a flip, and the child
finishes the command with the flipped bit. This way no simulation has to recover from a flip, and the cycles before a
flip are simulated only once.
"""

import ctypes
import dataclasses
import os
import pickle
import signal

import numpy as np

from hdl.group import GROUP
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.verilated import VerilatedTransport
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS
from sim.verilated.ring import VerilatedRing
from tests.features.reproducible.flips.library import Item, flip_library
from tests.features.reproducible.flips.nodes import CONFIGS, NODES
from tests.features.reproducible.flips.report import is_drawn
from tests.host.rings import Reference, random

__all__ = ["Flip", "play"]

_SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.5, learning_rate=0.25)
_SPECIALS = np.array([np.inf, -np.inf, np.nan], np.float32)
#: Number of cycles without a word on the ring after which nodes abort.
_TIMEOUT = 600
#: Number of cycles at the end of a command in which no bits flip, since runs end at a multiple of this number.
_GRID = 16
#: Number of seconds after which a simulation with a flip counts as hanging.
_PATIENCE = 300
#: The bits to flip are chosen at random from the whole engine except the optimizer, which processes finished sums.
_DRAWN, _LEFT_OUT = "engine.", "engine.datapath.update"


@dataclasses.dataclass(frozen=True)
class Flip:
    """A bit to flip just before the given cycle of the simulation."""

    cycle: int
    node: int
    item: int
    row: int
    bit: int


class FlippedRing(VerilatedRing):
    """Ring that forks in the cycle of each flip in ``flips``, a sorted list, and stores the children's answers.

    ``flip`` is None in the parent, the flip in a child that has one, and False in a child without a flip.
    """

    def __init__(self, library, *, nodes):
        super().__init__(library, nodes=nodes)
        self._library.ring_flip.argtypes = [ctypes.c_void_p, *4 * [ctypes.c_uint32]]
        self._library.ring_flip.restype = None
        self.flips, self.flip, self.answers = [], None, []
        self._pipe = None

    def run(self, cycles, *, until_packet_at=None):
        done, limit = 0, self.cycle + cycles
        while self.flips and self.flips[0].cycle < limit:
            before = max(0, self.flips[0].cycle - self.cycle)
            taken = super().run(before, until_packet_at=until_packet_at)
            done += taken
            if taken < before:
                return done
            flip = self.flips.pop(0)
            if self.fork(flip):
                self._library.ring_flip(self._ring, flip.node, flip.item, flip.row, flip.bit)
        return done + super().run(limit - self.cycle, until_packet_at=until_packet_at)

    def fork(self, flip=False):
        """Fork a child and wait for its answer. Returns True in the child, and False in the parent."""
        source, target = os.pipe()
        if not (child := os.fork()):
            signal.alarm(_PATIENCE)
            self.flips, self.flip, self._pipe = [], flip, target
            os.close(source)
            return True
        os.close(target)
        with os.fdopen(source, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        self.answers.append((flip, pickle.loads(answer) if answer else None))
        return False

    def answer(self, value):
        """End a child process and send its answer to the parent; do nothing in the parent."""
        if self.flip is not None:
            with os.fdopen(self._pipe, "wb") as pipe:
                pipe.write(pickle.dumps(value))
            os._exit(0)


class _Case:
    """A ring with random vectors and link latencies, and a command to run on it."""

    def __init__(self, name, operation, generator):
        self.config, self.operation = CONFIGS[name], operation
        library, self.items = flip_library(self.config)
        self.simulation = simulation = FlippedRing(library, nodes=NODES)
        for link in simulation.links:
            latency = int(generator.integers(2, 20))
            link.set_latency(data=latency, credit=latency)
        time = PortTime(lambda: simulation.cycle)
        transports = [BackdoorTransport(VerilatedTransport(simulation, node), simulation, node, self.config, time)
                      for node in range(NODES)]
        self.ring = ring = Ring([Device(transport, self.config, name=f"node {node}")
                                 for node, transport in enumerate(transports)], timeout=_TIMEOUT)
        ring.connect()
        self.length = int(generator.integers(300, 601))
        self.gradients = random(generator, (NODES, self.length))
        self.gradients *= np.exp2(generator.integers(-6, 6, self.gradients.shape)).astype(np.float32)
        if operation == "all_reduce" and generator.random() < 0.3:
            self.gradients[:, generator.integers(self.length, size=5)] = generator.choice(_SPECIALS, (NODES, 5))
        self.weights = random(generator, self.length)
        ring.collectives.distribute(self.weights)
        ring.settings.write(_SETTINGS)
        ring.memory.write_gradients(list(self.gradients), self.length)
        self.settle, ring.commands.settle = ring.commands.settle, self._settle

    def _settle(self, events):
        """Wait for a quiet ring only if events are missing; otherwise return at once without word counts."""
        return self.settle(events) if None in events else (None, 0)

    def memories(self):
        """Return the contents of all memories of all nodes."""
        return [[self.simulation.memory(node, space).copy() for space in range(self.simulation.spaces[node])]
                for node in range(NODES)]

    def run(self):
        """Run the command. Returns None if it succeeds, otherwise the events or exception with which it ended."""
        try:
            getattr(self.ring.collectives, self.operation)(self.length)
        except RingError as error:
            return [event and (event.status.name, event.detail, event.cycles) for event in error.events]
        except Exception as error:  # a driver may raise any error if a node returns wrong data
            return f"{type(error).__name__}: {error}"
        return None

    def check(self):
        """Compare the results of a command that ran without a flip with the golden model."""
        if self.operation == "all_reduce":
            expected, _ = golden.all_reduce(
                golden.bits(self.gradients), gradient_codec=GRADIENT_CODECS[self.config.gradients],
                segment=self.config.segment, lanes=self.config.lanes)
            assert (self.ring.memory.read_gradients(self.length).view(np.uint32) == expected).all()
            return
        reference = Reference(self.ring, self.weights)
        reference.step(self.gradients, _SETTINGS)
        reference.compare()

    def withheld(self, failure, before):
        """Whether all nodes left the segment and block named by WRONG_SUM unwritten, if an all-reduce ended with this
        status; None for any other outcome.
        """
        named = [event[1] for event in failure or () if event and event[0] == "WRONG_SUM"]
        if not named or isinstance(failure, str) or self.operation != "all_reduce":
            return None
        groups = np.arange(self.length) // GROUP
        blocks, segments = groups % NODES, groups // NODES * GROUP // self.config.segment
        here = (blocks == named[0] >> 16 & 0xff) & (segments == named[0] & 0xffff)
        written = np.array([now[0][:self.length] != then[0][:self.length]
                            for now, then in zip(self.memories(), before, strict=True)])
        return bool(here.any() and not written[:, here].any())

    def draw(self, generator, cycles, only):
        """Draw a flip of a register bit or a memory bit in one of ``cycles``; ``only`` selects the candidates, as in
        :func:`~tests.features.reproducible.flips.report.is_drawn`.
        """
        items = [index for index, item in enumerate(self.items) if item.path.startswith(_DRAWN)
                 and not item.path.startswith(_LEFT_OUT) and is_drawn(item.path, only)]
        weights = np.array([item.rows if item.rows > 1 else item.bits for item in map(self.items.__getitem__, items)])
        index = int(generator.choice(items, p=weights / weights.sum()))
        item = self.items[index]
        return Flip(int(generator.integers(cycles.start, cycles.stop)), int(generator.integers(NODES)), index,
                    int(generator.integers(item.rows)), int(generator.integers(item.bits)))


def play(name, operation, count, seed, only=""):
    """Run a command ``count`` times and flip one bit each time; ``only`` selects a stage or paths of candidate bits.

    Returns a list of dictionaries, for :func:`tests.features.reproducible.flips.report.show`.
    """
    generator = np.random.default_rng([seed, *f"{name}{operation}".encode()])
    case = _Case(name, operation, generator)
    simulation = case.simulation
    before, begun = case.memories(), simulation.cycle
    if simulation.fork():
        failure = case.run()
        simulation.answer((failure, simulation.cycle, case.memories()))
    (_, (failure, ended, after)), = simulation.answers
    assert failure is None, failure
    simulation.answers.clear()
    cycles = range(begun, ended - _GRID)
    simulation.flips = sorted((case.draw(generator, cycles, only) for _ in range(count)), key=lambda flip: flip.cycle)
    failure = case.run()
    simulation.answer((failure, _differences(case.memories(), before, after), case.withheld(failure, before)))
    assert failure is None, failure
    case.check()
    assert not simulation.flips
    results = [_result(case, flip, answer, cycles) for flip, answer in simulation.answers]
    simulation.close()
    return results


def _differences(memories, before, after):
    """For each memory space and node, the number of elements that differ from a run without the flip, and the number
    of those elements that also differ from their contents before the command.
    """
    wrong = {}
    for node, spaces in enumerate(memories):
        for space, now in enumerate(spaces):
            differs = now != after[node][space]
            if differs.any():
                neither = differs & (now != before[node][space])
                wrong[f"{space}/{node}"] = [int(differs.sum()), int(neither.sum())]
    return wrong


def _result(case, flip, answer, cycles):
    item: Item = case.items[flip.item]
    failure, wrong, withheld = answer or ("hangs", {}, None)
    return {"path": item.path, "row": flip.row, "bit": flip.bit, "node": flip.node,
            "cycle": flip.cycle - cycles.start, "of": len(cycles), "gradients": case.config.gradients,
            "operation": case.operation, "failure": failure, "wrong": wrong, "withheld": withheld}
