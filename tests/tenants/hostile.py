"""Attacks of a hostile tenant on simulated twin nodes, with random and mutated requests and programs.

Twins are two rings with the same nodes. They get the same requests, commands and lists, and the same contents in the
attacking tenant's window, but different contents everywhere else. Nothing outside the window may change, and all
answers must be the same on both rings in the same cycle, so that the tenant gets no information from outside.
"""

import dataclasses
import random
import time
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from hdl.control.engine import FAR
from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EDIT_WORDS,
    EVENT_WORDS,
    RUN_WORDS,
    EventStatus,
    Opcode,
    Operation,
    command_layout,
)
from hdl.control.registers import REGISTERS, TENANT_REGISTERS
from hdl.control.tenancy import windowed
from host.driver.command import Command
from host.driver.device import Device
from host.driver.ring import Ring
from host.driver.words import places
from host.features.tenants.tenants import TenantHost
from host.transports.verilated import OpenRing
from sim.verilated.build import Library
from tests.pairs.generator import Generator
from tests.pairs.memories import CONFIG, DATA, contents

Words = npt.NDArray[np.uint32]

_TIMEOUT, _BUDGET = 1_500, 1_000
_PATIENCE = 3_000
#: Maximum number of cycles to wait for an answer.
_LIMIT = 400_000
_FIELDS = places(command_layout())
#: Number of requests to each node in a batch.
REQUESTS = 40


class LeakError(AssertionError):
    """Raised if a word outside of the window changes, or if an answer depends on data outside of the window."""


class Twins:
    """Two equal rings that receive the same attacks, which are drawn at random from the seed.


    Nodes have the configuration :data:`tests.pairs.memories.CONFIG` by default. The twins count requests, commands,
    answers other than OK, words compared outside the windows, and commands stopped by a guard.
    """

    config = CONFIG
    #: Minimum number of elements in a window, which has room for the lists of :mod:`tests.pairs.memories`.
    room: ClassVar = {"gradients": 1024, "weights": 1024, "state_0": 384, "activations": 480}

    #: Memories that contain lists, and the addresses of lists in them.
    lists: ClassVar = [("weights", DATA, 1024), ("activations", 288, 480), ("gradients", DATA, 1024)]

    def __init__(self, library: Library | Sequence[Library], *, nodes: int, seed: int,
                 configs: Sequence[NodeConfig] | None = None) -> None:
        self.nodes, self.seed = nodes, seed
        self.configs = [self.config] * nodes if configs is None else list(configs)
        self.spaces = {space.name: space for config in reversed(self.configs) for space in windowed(config)}
        self.requests = self.commands = self.refused = self.words = self.guarded = 0
        self.statuses: dict[EventStatus, int] = {}  # number of events by status
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._generator = Generator(nodes, seed)
        self._opened = [OpenRing(library, nodes=nodes, threads=1) for _ in range(2)]
        devices = [[Device(transport, config, name=f"node {node}") for node, (transport, config) in enumerate(
            zip(twin.transports, self.configs, strict=True))] for twin in self._opened]
        self._rings = [Ring(twin, timeout=_TIMEOUT) for twin in devices]
        self._hosts = [TenantHost(twin) for twin in devices]
        for ring, host in zip(self._rings, self._hosts, strict=True):
            ring.connect()
            host.set_budget(_BUDGET)
        self._batch = 0
        self._prepared: list[list[Words]] = []  # requests to be sent next
        self._begin()

    def close(self) -> None:
        for opened in self._opened:
            opened.close()

    def _memory(self, twin: int, node: int, name: str) -> Words:
        simulation, memories = self._opened[twin].simulation, self.configs[node].memory_map
        return simulation.far_memory(node)[0][:self.spaces[FAR].words] if name == FAR else simulation.memory(
            node, memories[name].number)

    def _has(self, node: int, name: str) -> bool:
        return any(space.name == name for space in windowed(self.configs[node]))

    def _begin(self) -> None:
        """Give both tenants new windows, and choose the attacker, which is usually the tenant that runs commands."""
        choose = self._random
        self._attacker = choose.choice([1, 2])
        running = self._attacker if choose.random() < 0.9 else 3 - self._attacker
        own, other = {}, {}
        for space in self.spaces.values():
            size = choose.choice([self.room[space.name]] * 3 + [32 * choose.randrange(space.words // 32 + 1)])
            base = 32 * choose.randrange((space.words - size) // 32 + 1)
            own[space.name] = base, size
            other[space.name] = choose.choice([(0, base), (base + size, space.words - base - size)])
        for host in self._hosts:
            host.withdraw(self._attacker)
            host.withdraw(3 - self._attacker)
            host.grant(self._attacker, own)
            host.grant(3 - self._attacker, other)
            host.change(running)
        self._windows = own

    def _fill(self) -> None:
        """Fill the window with the same words on both rings, and everything else with different words."""
        inside = self._contents()
        for number, space in enumerate(windowed(self.config)):
            base, size = self._windows[space.name]
            for twin in range(2):
                for node in range(self.nodes):
                    memory = self._memory(twin, node, space.name)
                    memory[:] = self._numbers.integers(0, 1 << 32, space.words, dtype=np.uint32)
                    memory[base:base + size] = inside[number][node][:size]

    def _contents(self) -> list[Words]:
        """Draw words for each memory of all nodes; the first words of a memory go to the tenant's window in it."""
        inside, self._generator.programs = contents(self._random.getrandbits(32), self.nodes)
        self._generator.begin(patient=True)
        return inside

    def _outside(self, twin: int) -> Words:
        parts = []
        for name in self.spaces:
            base, size = self._windows[name]
            for node in range(self.nodes):
                if not self._has(node, name):
                    continue
                memory = self._memory(twin, node, name)
                parts += [memory[:base], memory[base + size:]]
        return np.concatenate(parts)

    def _inside(self, twin: int) -> Words:
        return np.concatenate([self._memory(twin, node, name)[base:base + size]
                               for name, (base, size) in self._windows.items() for node in range(self.nodes)
                               if self._has(node, name)])

    # Methods that generate requests.

    def _packet(self, opcode: int, count: int, *body: Any) -> Words:
        words = [np.array([opcode << 24 | self._random.randrange(256) << 16 | count & 0xFFFF], np.uint32)]
        return np.concatenate([*words, *(np.atleast_1d(np.asarray(part, np.uint32)) for part in body)])

    def _noise(self, count: int) -> Words:
        return self._numbers.integers(0, 1 << 32, count, dtype=np.uint32)

    def _fields(self) -> dict[str, int]:
        choose = self._random
        likely = {
            "gradient_base": 32 * choose.randrange(80), "weight_base": 32 * choose.randrange(80),
            "state_base": 32 * choose.randrange(80),
            "length": choose.choice([choose.randrange(2100), 0, 32, 33, 1024]), "tenant": choose.randrange(4),
            "size": choose.randrange(1, 4), "rank": choose.randrange(3), "stride": choose.randrange(1, 9),
            "operation": choose.choice([operation.value for operation in Operation])}
        names = choose.sample(sorted(_FIELDS), choose.choice([1, 1, 2, 5]))
        names = [name for name in names if not name.startswith("reserved")]
        return {name: likely[name] if name in likely and choose.random() < 0.8 else
                choose.getrandbits(_FIELDS[name][1]) for name in names}

    def _commands(self) -> list[Words]:
        """Draw the words of a command for each node: well-formed, mutated or random."""
        choose = self._random
        kind = choose.random()
        if choose.random() < 0.2:
            self._generator.begin(patient=choose.random() < 0.7)
        step = self._generator.step()
        while not step.commands:
            step = self._generator.step()
        commands = [dataclasses.replace(command, tenant=self._attacker, wait=command.wait & 63 * (kind > 0.9),
                                        signal=command.signal & 0xFFFF)
                    for command in step.commands]
        if kind < 0.4:
            fields = self._fields()
            some = choose.choice([range(self.nodes), [choose.randrange(self.nodes)]])
            commands = [dataclasses.replace(command, **fields) if node in some else command
                        for node, command in enumerate(commands)]
        words = [command.words() for command in commands]
        if kind < 0.1:
            words = [self._noise(DESCRIPTOR_WORDS) for _ in words]
            for row in words:
                row[0] = row[0] & 0xFFFFFF00 | choose.choice([operation.value for operation in Operation])
                row[7] = row[7] & 0xFFFF | self._attacker << 16
        return words

    def _place(self) -> tuple[int, int]:
        """Draw an address, often at or near the limits of a window, and a count."""
        choose = self._random
        space = choose.choice([*windowed(self.configs[0])] * 4 + [self.configs[0].memory_map["trace"]])
        size = self._windows.get(space.name, (0, 0))[1]
        address = choose.choice([choose.randrange(space.words + 1), max(0, size - choose.randrange(40)), size, 0,
                                 choose.getrandbits(28)])
        return space.number << 28 | address, choose.choice([1, choose.randrange(1, 70), max(1, size - address)])

    def _aim(self) -> None:
        """Prepare a list that is valid, except for addresses anywhere in memory, and a command that uses the list."""
        choose, programs = self._random, self._generator.programs
        operation = choose.choice([Operation.INFER, Operation.LAYERS, Operation.LAYERS, Operation.MASK])
        fields = {"state_base": 0, "length": choose.randrange(1, 7)}
        if operation is Operation.INFER:
            name, base = "weights", choose.choice(list(programs.layers))
            changes = {base + choose.randrange(2, 6): 4 * choose.randrange(512)}
        elif operation is Operation.LAYERS:
            name, base = "activations", min(programs.lists)
            fields["state_base"] = 4 * choose.randrange(128)
            changes = {base + 16 * choose.randrange(3) + choose.randrange(4, 9):
                       choose.randrange(2) << 31 | choose.randrange(3) << 28 | 4 * choose.randrange(512)}
            changes = changes if choose.random() < 0.6 else {}
        else:
            name, base = "weights", choose.choice(list(programs.masks))
            fields |= {"state_base": 32 * choose.randrange(33), "length": programs.masks[base].elements}
            changes = {base: programs.masks[base].count << 16 | 1 << 6} if choose.random() < 0.5 else {}
        number = self.config.memory_map[name].number << 28
        command = Command(operation=operation, tenant=self._attacker, weight_base=base, **fields).words()
        self._prepared = [
            *([self._packet(Opcode.WRITE_MEMORY, 1, number | address, value)] * self.nodes
              for address, value in changes.items()),
            [self._packet(Opcode.PUSH_COMMAND, DESCRIPTOR_WORDS, command)] * self.nodes,
            [self._packet(Opcode.POP_EVENT, EVENT_WORDS, _PATIENCE)] * self.nodes]

    def _requests(self) -> list[Words]:
        choose = self._random
        if not self._prepared and choose.random() < 0.15:
            self._aim()
        if self._prepared:
            return self._prepared.pop(0)
        kind = choose.random()
        nodes = range(self.nodes)
        if kind < 0.42:
            return [self._packet(Opcode.PUSH_COMMAND, DESCRIPTOR_WORDS, words) for words in self._commands()]
        if kind < 0.66:
            return [self._packet(Opcode.POP_EVENT, EVENT_WORDS, choose.choice([0, _PATIENCE]))] * self.nodes
        if kind < 0.75:  # words in lists of jobs, layers and instructions
            name, first, end = choose.choice(self.lists)
            position = self.configs[0].memory_map[name].number << 28 | choose.randrange(first, end)
            operand = choose.randrange(2) << 31 | choose.randrange(4) << 28 | 4 * choose.randrange(512)
            word = choose.choice([self._noise(1), [choose.randrange(2100)], [1 << choose.randrange(32)], [operand],
                                  [operand]])
            return [self._packet(Opcode.WRITE_MEMORY, 1, position, word)] * self.nodes
        if kind < 0.84:
            position, count = self._place()
            if choose.random() < 0.5:
                return [self._packet(Opcode.READ_MEMORY, count, position)] * self.nodes
            return [self._packet(Opcode.WRITE_MEMORY, count, position, self._noise(min(count, 600)))
                    for _ in nodes]
        if kind < 0.89:
            address = choose.randrange(len(REGISTERS) + len(TENANT_REGISTERS) + 1)
            if choose.random() < 0.5:
                return [self._packet(Opcode.READ_REGISTER, choose.randrange(1, 12), address)] * self.nodes
            value = choose.choice([0, 1, 2, 3, choose.getrandbits(12), choose.getrandbits(32)])
            return [self._packet(Opcode.WRITE_REGISTER, 1, address, value)] * self.nodes
        if kind < 0.93:
            count = choose.randrange(4)
            commands = [self._commands() for _ in range(count)]
            config = self.configs[0]
            position = (choose.randrange(config.programs.depth) % choose.choice([1, 64])
                        | choose.randrange(config.queues) << 16 | config.has_banks * choose.randrange(2) << 23)
            return [self._packet(Opcode.LOAD_PROGRAM, DESCRIPTOR_WORDS * count, position,
                                 *(command[node] for command in commands)) for node in nodes]
        if kind < 0.96:
            return [self._packet(Opcode.RUN, RUN_WORDS, choose.randrange(1, 4), choose.getrandbits(8),
                                 choose.choice([0, node | self.nodes << 4])) for node in nodes]
        if kind < 0.97:
            return [self._packet(Opcode.EDIT, EDIT_WORDS, choose.randrange(1, 4) | choose.randrange(3) << 16,
                                 choose.choice([0, zlib.crc32(np.zeros(1, np.uint32)), choose.getrandbits(32)]))
                    ] * self.nodes
        if kind < 0.98:
            return [self._packet(Opcode.PING, 3, [1, 2, 3])] * self.nodes
        return [self._packet(choose.randrange(256), choose.randrange(70), self._noise(choose.randrange(1, 20)))
                for _ in nodes]

    def _asks(self, node: int, packet: Words) -> int:
        """Number of the tenant that sends a request."""
        return self._attacker

    def _ask(self, twin: int, packets: list[Words]) -> list[tuple[int, list[int]]]:
        """Send the packets of a tenant, each after the tenant's number; return the answers and their cycles."""
        simulation = self._opened[twin].simulation
        for node, packet in enumerate(packets):
            simulation.send(node, np.concatenate([np.array([self._asks(node, packet)], np.uint32), packet]))
        answers = []
        for node in range(len(packets)):
            answer = simulation.receive(node)
            if answer is None:
                simulation.run(_LIMIT, until_packet_at=node)
                answer = simulation.receive(node)
            if answer is None:
                raise LeakError(f"node {node} has not answered {packets[node][:4]}")
            answers.append((simulation.cycle, answer.tolist()))
        return answers

    def batch(self) -> None:
        """Send requests to both rings and compare answers; a :class:`LeakError` gives the seed and the batch."""
        self._batch += 1
        if self._batch % 5 == 0:
            self._begin()
        self._fill()
        before = [self._outside(twin) for twin in range(2)]
        where = f"{self.nodes} nodes, seed {self.seed}, batch {self._batch}"
        for number in range(REQUESTS):
            packets = self._requests()
            answers = [self._ask(twin, packets) for twin in range(2)]
            self._count(packets, answers[0])
            if answers[0] != answers[1]:
                raise LeakError(f"{where}, request {number}, {packets}: twins differ, {answers}")
        for ring in self._rings:
            ring.devices.write_register("TIMEOUT", _TIMEOUT)
            ring.recover()
        for twin in range(2):
            changed = np.flatnonzero(self._outside(twin) != before[twin])
            if changed.size:
                raise LeakError(f"{where}: {changed.size} words outside have changed on twin {twin}: {changed[:9]}")
        self.words += 2 * before[0].size
        if (self._inside(0) != self._inside(1)).any() or len({each.simulation.cycle for each in self._opened}) > 1:
            raise LeakError(f"{where}: windows of twins differ, or their cycles")

    def _count(self, packets: list[Words], answers: list[tuple[int, list[int]]]) -> None:
        for packet, (_, answer) in zip(packets, answers, strict=True):
            opcode = int(packet[0]) >> 24
            self.requests += 1
            self.commands += opcode in (Opcode.PUSH_COMMAND, Opcode.LOAD_PROGRAM)
            self.refused += answer[1] != 0
            if opcode == Opcode.POP_EVENT and answer[1] == 0:
                status = EventStatus(answer[2] >> 16 & 0xFF)
                self.guarded += status is EventStatus.OUT_OF_WINDOW and answer[4] > 0
                self.statuses[status] = self.statuses.get(status, 0) + 1


def attack(library: Library | Sequence[Library], nodes: int, seed: int, batches: int,
           kind: type[Twins] = Twins, configs: Sequence[NodeConfig] | None = None) -> dict[str, Any]:
    """Run a number of batches, stopping at the first leak; return a summary."""
    began = time.process_time()
    twins = kind(library, nodes=nodes, seed=seed, configs=configs)
    leak = ""
    try:
        for _ in range(batches):
            twins.batch()
    except LeakError as error:
        leak = str(error)
    finally:
        twins.close()
    return {"nodes": nodes, "seed": seed, "batches": batches, "requests": twins.requests, "commands": twins.commands,
            "refused": twins.refused, "words": twins.words, "guarded": twins.guarded, "leak": leak,
            "statuses": {status.name: count for status, count in sorted(twins.statuses.items())},
            "cpu_seconds": time.process_time() - began}
