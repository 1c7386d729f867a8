"""Random commands of every kind, with random values in all fields that an operation ignores.

The nodes have two queues. All commands that change memory run in creation order, which is enforced by the queue
itself, by flags between the queues, and by dependencies within a program.
"""

import collections
import dataclasses
import random

from hdl.control.protocol import EventStatus, Operation, command_layout
from hdl.control.pushed_commands import queue_of
from hdl.engines import operations
from host.driver.command import Command
from host.driver.words import places
from sim.golden import masking
from tests.pairs.memories import CONFIG, DATA
from tests.pairs.model import Programs

#: Kinds of commands that end with OK, and kinds that end with a certain error status on every node. SWITCH is left
#: out, because all nodes must then wait for each other, and its status (OK or BUSY) depends on packets that arrive.
_OPERATIONS = [Operation(operation.code) for operation in operations(CONFIG) if operation.code != Operation.SWITCH]
_QUEUES = {Operation(operation.code): queue_of(operation, CONFIG.queues) for operation in operations(CONFIG)}
_GOOD = [operation.name.lower() for operation in _OPERATIONS]
_REJECTED = {
    "unknown_operation": EventStatus.UNKNOWN_OPERATION,
    "bad_base": EventStatus.BAD_BASE,
    "bad_length": EventStatus.BAD_LENGTH,
    "bad_rank": EventStatus.BAD_RANK,
    "bad_stride": EventStatus.BAD_STRIDE,
    "repeated": EventStatus.REPEATED,
    "bad_mask": EventStatus.BAD_MASK,
    "bad_layer": EventStatus.BAD_LAYER,
    "bad_instruction": EventStatus.BAD_INSTRUCTION,
    "wait_timeout": EventStatus.WAIT_TIMEOUT,
}
#: Kind of collective that every node aborts because one of the nodes has a different collective number.
_REFUSED = "refused"
#: Kinds of requests that are not commands: loading both programs, and running them.
_LOAD, _RUN = "load_program", "run"
KINDS = (*_GOOD, *_REJECTED, _REFUSED, _LOAD, _RUN)

_RING = (Operation.FUSED_UPDATE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER,
         Operation.BROADCAST)
#: Operations in which one node may own all groups.
_OWNED = (Operation.FUSED_UPDATE, Operation.ALL_REDUCE)
_WEIGHTS = (Operation.FUSED_UPDATE, Operation.ALL_GATHER, Operation.BROADCAST, Operation.SPARSIFY)
#: Offset added to the collective number on one node, so that it differs from all other numbers in a batch.
_ANOTHER = 1 << 15
_NEVER_SET = 1 << 15  # flag that no command ever sets
#: Flag that the host sets when it has written new settings, which a LATCH then copies.
LATCHED_FLAG = 1 << 14
_FREE = 6  # number of flags for random signals and waits; the flags above keep commands in order


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One command for each node of the ring, and the status that is expected."""

    kind: str  # one of KINDS
    commands: list[Command]  # commands by node
    status: EventStatus | None  # expected status; None if any status other than OK and time-outs is allowed
    queue: int = 1
    of_program: bool = False  # whether the commands are in a program
    latches: bool = False  # whether a LATCH waits for new settings
    #: Commands in order of execution: of one pass if programs are loaded, or of all passes if they are run.
    program: list["Step"] = dataclasses.field(default_factory=list)
    options: dict[str, int] = dataclasses.field(default_factory=dict)  # data for the model, or parameters of a run


def _span(command: Command) -> int:
    """Return the number of elements from the first to the last one that a command uses in a memory, including
    both."""
    groups, stride = -(-command.length // 32), command.stride if command.operation in _RING else 1
    return 32 * ((groups - 1) * stride + 1) if groups else 0


class Generator:
    """Generator of random commands, which prefers pairs of kinds that have been rare so far."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.nodes = nodes
        #: Number of times that a command of one kind has followed a command of another, by pair of kinds.
        self.pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        self.last = ""  # kind of the latest command, or its outcome
        self.patient = True  # whether time-outs are long enough to wait for the other queue
        self.weight_stride = 0  # value of the register WEIGHT_STRIDE
        self.programs = Programs(masks={}, layers={}, lists={}, wrong=0)
        self._random = random.Random(seed)
        # Operations in which a block passes through a node with a different collective number before it reaches all
        # other nodes.
        self._refusing = [Operation.ALL_REDUCE, Operation.FUSED_UPDATE]
        if 32 * nodes <= DATA // 2:
            self._refusing += [Operation.REDUCE_SCATTER, Operation.ALL_GATHER]
        self._used: collections.Counter[str] = collections.Counter()
        self._epoch = 0
        self._flags = 0
        self._tag = 0
        self._number = 0  # number of the latest collective
        self._ran: int | None = None  # number of the latest collective that all nodes ran, if known
        self._half = False  # whether a rejection has left only the lower half of the data known
        self._at = 1  # queue of the latest command that changed memory
        self._order = 0  # flag of the latest command that changed memory, or 0 once the other queue waits for it
        self._orders = 0  # number of flags used in this batch to keep commands in order
        self._only: int | None = None  # the only queue in which the next command may change memory, or None
        self._loaded: Step | None = None
        self._pushed_latch = False  # whether a LATCH has been pushed in this batch

    def begin(self, *, patient: bool, ring: bool = False) -> None:
        """Begin a new batch, with no flags set and the contents of all memories known.

        A ``patient`` batch has programs, and commands in both queues that wait for each other; otherwise all commands
        are in one queue. With ``ring``, the batch ends with a collective.
        """
        self._flags = self._order = self._orders = 0
        self._half = self._pushed_latch = False
        self._ran = None
        self._loaded = None
        self.patient = patient
        self._only = None if patient else int(ring or self._random.random() < 0.7)
        if self._number > _ANOTHER // 2:
            self._number = 0

    @property
    def _end(self) -> int:
        return DATA // 2 if self._half else DATA

    @property
    def _state_end(self) -> int:
        return CONFIG.memories.state // 2 if self._half else CONFIG.memories.state

    def next_epoch(self) -> int:
        """Advance to the epoch of the next commands, and return it."""
        self._epoch = (self._epoch + 1) % 256
        return self._epoch

    def step(self, *, ring: bool = False) -> Step:
        """Create the next command. With ``ring``, it is a collective that ends with OK unless faults disturb it."""
        kinds = [operation.name.lower() for operation in _RING] if ring else [
            kind for kind in KINDS if self._may_follow(kind)]
        self._random.shuffle(kinds)
        # Choose the rarest pair and, in most steps, the rarest kind among equally rare pairs. (The last kind is never
        # the rarest, so some steps ignore the rarity of kinds.)
        rare = self._random.random() < 0.7
        kind = min(kinds, key=lambda kind: (self.pairs[self.last, kind], self._used[kind] if rare else 0))
        if self._random.random() < 0.3:  # runs need loaded programs and would otherwise be too rare
            kind = _RUN if _RUN in kinds else _LOAD if _LOAD in kinds else kind
        self._used[kind] += 1
        self.pairs[self.last, kind] += 1
        self.last = kind
        return self._make(kind)

    def _may_follow(self, kind: str) -> bool:
        """Return whether a command of this kind may be the next one."""
        if kind == _REFUSED:
            return self.nodes > 1 and not self._half and self._only != 0 and self._loaded is None
        if kind == "latch" and self._loaded is not None and any(step.latches for step in self._loaded.program):
            return False  # A LATCH may run when the host has already written new settings.
        if kind in _GOOD:
            return self._only in (None, _QUEUES[Operation[kind.upper()]])
        return {"repeated": self._ran is not None, "wait_timeout": not self.patient,
                # There is at most one load per batch, since programs cannot be loaded during a run.
                _LOAD: self.patient and self._loaded is None,
                _RUN: self._may_run()}.get(kind, True)

    def _may_run(self) -> bool:
        """Return whether programs are loaded and all commands pushed so far would run before the programs' first
        command."""
        if self._loaded is None or self._loaded.kind != _LOAD:
            return False
        return not self._orders or self._at == self._loaded.program[0].queue

    def _next_tag(self) -> int:
        self._tag = (self._tag + 1) % (1 << 16)
        return self._tag

    def _make(self, kind: str) -> Step:
        if kind == _LOAD:
            self._loaded = self._load()
            return self._loaded
        if kind == _RUN:
            assert self._loaded is not None
            self._loaded = self._run(self._loaded)
            return self._loaded
        choose = self._random
        status: EventStatus | None = EventStatus.OK
        self._pushed_latch |= kind == "latch"
        if kind in _GOOD:
            commands = self._good(Operation[kind.upper()])
            if commands[0].operation in _RING:
                self._ran = commands[0].collective
        elif kind == _REFUSED:
            status = None
            commands = self._good(choose.choice(self._refusing), upper=True)
            odd = choose.randrange(self.nodes)
            commands[odd] = dataclasses.replace(commands[odd], collective=commands[odd].collective ^ _ANOTHER)
            self._half, self._ran = True, None
        else:
            status = _REJECTED[kind]
            commands = self._rejected(kind)
        queue = _QUEUES.get(commands[0].operation, CONFIG.queues - 1)
        flags = {"tag": self._next_tag(), "signal": choose.getrandbits(_FREE) & choose.getrandbits(_FREE), "wait": 0}
        if kind == "wait_timeout":
            flags["wait"] = _NEVER_SET
        elif kind in _GOOD and choose.random() < 0.5:
            flags["wait"] = self._flags & choose.getrandbits(_FREE)
        if status in (EventStatus.OK, None) and queue != self._at:
            flags["wait"] |= self._order
            self._order = 0
        if status is EventStatus.OK:
            self._flags = self._flags & ~flags["wait"] | flags["signal"]
            if self.patient:
                self._order = 1 << _FREE + self._orders
                self._orders += 1
                self._only = None
            flags["signal"] |= self._order
            self._at = queue
        commands = [dataclasses.replace(command, **flags) for command in commands]
        if kind == _REFUSED:
            self.next_epoch()
        return Step(kind=kind, commands=commands, status=status, queue=queue)

    def _load(self) -> Step:
        """Create programs for both queues such that there is a common order of all commands."""
        choose = self._random
        count = choose.randrange(1, 5)
        queues = [choose.randrange(CONFIG.queues) for _ in range(count)]
        steps: list[Step] = []
        collectives = 0
        wanted = choose.choice([[], [], [Operation.LATCH, Operation.FUSED_UPDATE]])
        for index, queue in enumerate(queues):
            operation = wanted.pop(0) if wanted and queue == 1 else choose.choice([
                each for each in _OPERATIONS if each is Operation.QUIESCE or _QUEUES[each] == queue])
            collectives += operation in _RING
            latches = operation is Operation.LATCH and not self._pushed_latch and choose.random() < 0.8 and not any(
                step.latches for step in steps)
            earlier = sum(other != queue for other in queues[:index])
            # A pass's first command runs after all other commands of the previous pass.
            lag = int(not earlier)
            fields = {"tag": self._next_tag(), "signal": choose.getrandbits(_FREE),
                      "wait": LATCHED_FLAG if latches else 0, "lag_0": lag,
                      "after_0": sum(other != queue for other in queues) if lag else earlier,
                      # Nodes without control words cannot wait for other nodes.
                      choose.choice(["remote", "after_1"]): 0}
            commands = [dataclasses.replace(command, **fields)
                        for command in self._alternating(self._good(operation, number=collectives))]
            steps.append(Step(kind=operation.name.lower(), commands=commands, status=EventStatus.OK, queue=queue,
                              of_program=True, latches=latches))
        return Step(kind=_LOAD, commands=[], status=EventStatus.OK, program=steps,
                    options={"model": choose.randrange(256)})

    def _alternating(self, commands: list[Command]) -> list[Command]:
        """At random, let commands alternate between two copies of the weights if both copies fit in memory."""
        operation = commands[0].operation
        room = min(self._end - command.weight_base - _span(command) for command in commands)
        of_list = operation in (Operation.MASK, Operation.INFER, Operation.LAYERS)
        if of_list or (operation in _WEIGHTS and room < self.weight_stride):
            return [dataclasses.replace(command, alternate=0) for command in commands]
        alternate = self._random.getrandbits(1)
        return [dataclasses.replace(command, alternate=alternate) for command in commands]

    def _run(self, loaded: Step) -> Step:
        """Create a run of the programs, with all commands that it executes."""
        choose = self._random
        steps = loaded.program
        collectives = sum(step.commands[0].operation in _RING for step in steps)
        passes = 1 if any(step.latches for step in steps) else choose.randrange(1, 4)
        options = {"passes": passes, "parity": choose.getrandbits(1), "collective": self._number,
                   "collectives": collectives, **loaded.options}
        every = []
        for number in range(passes):
            odd = (number + options["parity"]) % 2
            every += [dataclasses.replace(step, commands=[dataclasses.replace(
                command, weight_base=command.weight_base + self.weight_stride * command.alternate * odd,
                collective=(command.collective + self._number + number * collectives) % (1 << 16))
                for command in step.commands]) for step in steps]
        self._number += passes * collectives
        if collectives:
            self._ran = self._number
        for step in steps:
            self._flags |= step.commands[0].signal
        self._at, self._order = steps[-1].queue, 0
        # Later commands wait only for the program in their own queue.
        self._only = self._at
        return Step(kind=_RUN, commands=[], status=EventStatus.OK, program=every, options=options)

    def _noise(self) -> dict[str, int]:
        """Draw random values for all fields other than operation, flags and tag."""
        choose = self._random
        noise = {name: choose.getrandbits(width) for name, (_, width) in places(command_layout()).items()
                 if name not in ("operation", "wait", "signal", "tag") and not name.startswith("reserved")}
        # Values that would be valid in a collective are the most likely ones to reveal errors.
        likely = {"rank": choose.randrange(16), "size": choose.choice([0, 1, 2, 16, 32, 64]), "port": 0,
                  "gradient_base": 32 * choose.randrange(32), "weight_base": 32 * choose.randrange(32),
                  "state_base": 32 * choose.randrange(16), "length": choose.randrange(CONFIG.memories.gradient + 1)}
        noise.update({name: value for name, value in likely.items() if choose.random() < 0.5})
        noise["tenant"] = 0
        return noise

    def _extent(self, start: int, most: int) -> tuple[int, int]:
        """Draw a base address and a length in the part of a memory that is for data."""
        choose = self._random
        base = 32 * choose.randrange(start // 32, self._end // 32)
        room = min(self._end - base, most)
        return base, min(room, choose.choice([0, 1, choose.randrange(1, 33), choose.randrange(1, 129),
                                              choose.randrange(1, 129), choose.randrange(1, room + 1)]))

    def _good(self, operation: Operation, *, upper: bool = False, number: int | None = None) -> list[Command]:
        """Create commands that should end with OK, optionally only on the ``upper`` half of the data or with a
        ``number``."""
        choose = self._random
        start, state_start = (DATA // 2, CONFIG.memories.state // 2) if upper else (0, 0)
        used: dict[str, int] = {}
        if operation in _RING:
            if number is None:
                number = self._number = (self._number + 1) % _ANOTHER
            most = DATA
            if operation in _OWNED:
                used["root_reduce"] = choose.getrandbits(1)
            if operation is Operation.FUSED_UPDATE:
                used["state_base"] = state_start if upper else 32 * choose.randrange(self._state_end // 32)
                if upper:  # the owner may lack memory for this many elements
                    used["root_reduce"] = 0
                most = (self._state_end - used["state_base"]) * (1 if used["root_reduce"] else self.nodes)
            bases = [self._extent(start, most) for _ in range(2)]
            used["length"] = min(length for _, length in bases)
            stride = 1 if upper else choose.choice([1, 1, 1, 2, 3])
            used["length"] = min(used["length"], *(
                32 * -(-((self._end - base) // 32) // stride) for base, _ in bases))
            if upper:  # empty blocks are forwarded without waiting for their owners
                bases = [(start, 0)] * 2
                used["length"] = DATA - start
            if operation not in (Operation.ALL_GATHER, Operation.BROADCAST):
                used["gradient_base"] = bases[0][0]
            if operation not in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER):
                used["weight_base"] = bases[1][0]
            if operation is Operation.BROADCAST or used.get("root_reduce"):
                used["root"] = choose.randrange(self.nodes)
            used |= {"size": self.nodes, "port": 0, "epoch": self._epoch, "collective": number,
                     "block_offset": choose.randrange(self.nodes), "stride": stride}
            first = choose.randrange(self.nodes)
            return [Command(operation=operation, **{**self._noise(), **used, "rank": (node + first) % self.nodes})
                    for node in range(self.nodes)]
        commands = []
        for _ in range(self.nodes):
            if operation is Operation.MASK:
                used["weight_base"], job = choose.choice(list(self.programs.masks.items()))
                used["length"] = job.elements
                used["gradient_base"] = 32 * choose.randrange((self._end - job.elements) // 32 + 1)
                used["state_base"] = 32 * choose.randrange((self._end - masking.words_fetched(job)) // 32 + 1)
            elif operation is Operation.SPARSIFY:
                bases = [self._extent(start, DATA) for _ in range(2)]
                used = {"gradient_base": bases[0][0], "weight_base": bases[1][0],
                        "length": min(length for _, length in bases)}
            elif operation is Operation.COMPUTE:
                bases = [self._extent(start, DATA) for _ in range(2)]
                (target, _), (source, _) = bases
                length = min(length for _, length in bases)
                # The target and source regions are either the same or disjoint.
                used = {"gradient_base": target, "state_base": source, "duration": choose.randrange(400),
                        "length": min(length, abs(target - source)) if target != source else length}
            elif operation is Operation.INFER:
                used["weight_base"], (_, source, target) = choose.choice(list(self.programs.layers.items()))
                # Rows of inputs and outputs have 8 elements each, and must not overlap.
                used["length"] = choose.randrange(max(0, min(target - source, self._end - target) // 8) + 1)
            elif operation is Operation.LAYERS:
                used["weight_base"], most = choose.choice(list(self.programs.lists.items()))
                # A list's data begins at the state base, which is a multiple of a memory row.
                used |= {"state_base": CONFIG.lanes * choose.randrange(16), "length": choose.randrange(1, most + 1)}
            commands.append(Command(operation=operation, **{**self._noise(), **used}))
        return commands

    def _rejected(self, kind: str) -> list[Command]:
        choose = self._random
        if kind == "unknown_operation":
            operation = choose.choice([13, 14, 99, 255])
            return [Command(operation=operation, **self._noise()) for _ in range(self.nodes)]  # type: ignore[arg-type]
        if kind == "wait_timeout":
            return self._good(choose.choice([each for each in _OPERATIONS if self._only in (None, _QUEUES[each])]))
        if kind in ("bad_mask", "bad_layer"):
            operation = Operation.MASK if kind == "bad_mask" else Operation.INFER
            used = {"gradient_base": 0, "weight_base": CONFIG.memories.weight, "state_base": 0,
                    "length": choose.randrange(1, DATA)}  # an empty list at the end of memory
            return [Command(operation=operation, **{**self._noise(), **used}) for _ in range(self.nodes)]
        if kind == "bad_instruction":
            used = {"weight_base": self.programs.wrong, "state_base": CONFIG.lanes * choose.randrange(16),
                    "length": choose.randrange(1, DATA)}
            return [Command(operation=Operation.LAYERS, **{**self._noise(), **used}) for _ in range(self.nodes)]
        commands = self._good(choose.choice(_RING), number=self._ran or 0)
        if kind == "repeated":
            return commands
        if kind == "bad_stride":
            wrong = choose.choice([{"stride": 0}, {"block_offset": self.nodes}, {"block_offset": 255}])
        elif kind == "bad_rank":
            wrong = choose.choice([{"size": 0}, {"size": 17}, {"rank": self.nodes},
                                   {"port": CONFIG.topology.ports}])
        elif kind == "bad_base":
            wrong = {name: choose.choice([1, 1040, 1 << 31]) for name in ("gradient_base", "weight_base")}
        else:
            wrong = {"length": choose.choice([CONFIG.memories.gradient + 1, 1 << 31])}
        return [dataclasses.replace(command, **wrong) for command in commands]
