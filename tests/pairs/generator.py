"""Random commands of every kind, with random values in all fields that an operation ignores.

The lower part of each memory is for data. Behind it are the lists of local commands in the weight memory, and the
parameters of layers in the gradient memory, which no command may change.
"""

import collections
import dataclasses
import random

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Operation, Space, command_layout
from hdl.engines import operations
from hdl.masking.mask import KINDS as MASK_KINDS
from hdl.quantization.layer_list import LAYER_WORDS
from host.driver.command import Command
from host.driver.inference import program
from host.driver.masking import Mask, MaskJob, plan
from host.driver.words import places
from sim.golden import masking, quantization
from tests.pairs.model import Programs

__all__ = ["CONFIG", "DATA", "KINDS", "Generator", "Step", "contents"]

Words = npt.NDArray[np.uint32]

#: Configuration of the nodes: every engine, one state plane, segments short enough for several in a block.
CONFIG = NodeConfig(gradient_words=2048, weight_words=2048, state_words=512, state_planes=1, segment=64,
                    quantization=True, stand_in=True)

#: Elements of the gradient and the weight memory that commands change.
DATA = 768

_MASK_LISTS, _LAYER_LISTS = 4, 2
_LIST = 32  # words of a list of masks
_LAYER = 64  # words of a list of one layer, with its codes
_LAYERS = DATA + _LIST * _MASK_LISTS  # address of the first list of layers

#: Kinds of commands that end with OK, and of those that end with a status of their own on every node.
_OPERATIONS = [Operation(operation.code) for operation in operations(CONFIG)]
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
    "wait_timeout": EventStatus.WAIT_TIMEOUT,
}
#: Kind of a collective in which one node has a different number, so that all nodes give it up.
_REFUSED = "refused"
KINDS = (*_GOOD, *_REJECTED, _REFUSED)

_RING = (Operation.FUSED_UPDATE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER,
         Operation.BROADCAST)
#: Added to the number of one node, which no other command of a batch has then.
_ANOTHER = 1 << 15
_NEVER_SET = 1 << 15  # the flag that no command signals


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One command per node, with the expected status.

    Members
    -------
    kind : one of KINDS
    commands : list of Command
        Commands in the order of the nodes.
    status : EventStatus or None
        Expected status; None for any but OK and a time-out.
    """

    kind: str
    commands: list[Command]
    status: EventStatus | None


def contents(seed: int, nodes: int) -> tuple[list[Words], Programs]:
    """Random memories of all nodes, with the lists in them."""
    generator = np.random.default_rng(seed)
    memories = []
    for words in CONFIG.memories.words:
        values = generator.standard_normal((nodes, words)).astype(np.float32)
        values[generator.random((nodes, words)) < generator.choice([0.0, 0.5, 0.95])] = 0
        memories.append(values.view(np.uint32))
    masks, layers = {}, {}
    for number in range(_MASK_LISTS):
        base = DATA + _LIST * number
        job = _mask(generator)
        region, = plan([job], lanes=CONFIG.lanes, elements=CONFIG.gradient_words, words=CONFIG.weight_words)
        memories[Space.WEIGHT][:, base:base + _LIST] = region.words[:_LIST]
        masks[base] = masking.Job(rows=job.rows, columns=job.columns, count=job.count,
                                  mask=masking.Mask(**vars(job.mask)))
    for number in range(_LAYER_LISTS):
        base, parameters = _LAYERS + _LAYER * number, DATA + 32 * number
        layer = quantization.Layer(
            generator.integers(0, 16, (8, 24)), -8, "min", 4, generator.integers(-500, 500, 8), 0, 1, False, False,
            True)
        given = program([layer], lanes=CONFIG.lanes, gradient_words=CONFIG.gradient_words,
                        weight_words=CONFIG.weight_words)
        source, target = (int(32 * place) for place in generator.choice(DATA // 64, 2, replace=False))
        target += DATA // 2 - DATA // 2 % 32
        words = given.weights.copy()
        # Words 2 to 5 of a layer are the addresses of its codes, inputs, parameters and outputs.
        words[2:6] = base + LAYER_WORDS * 4, source, parameters, target
        memories[Space.WEIGHT][:, base:base + len(words)] = words
        memories[Space.GRADIENT][:, parameters:parameters + len(given.parameters)] = given.parameters
        layers[base] = layer, source, target
    return memories, Programs(masks=masks, layers=layers)


def _mask(generator: np.random.Generator) -> MaskJob:
    rows, columns, count = int(generator.integers(1, 9)), 4 * int(generator.integers(1, 5)), 1
    count = int(generator.integers(1, 4))
    kinds = {name: bool(generator.random() < 0.3) for name in MASK_KINDS}
    numbers = {name: int(generator.integers(0, 17)) for name in (
        "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")}
    external = generator.random((count, rows, columns)) < 0.5 if kinds["external"] else None
    return MaskJob(matrices=np.zeros((count, rows, columns), np.float32), external=external,
                   mask=Mask(**kinds, **numbers, diagonal=int(generator.integers(-8, 9))))


class Generator:
    """Generator of commands, which prefers the rarest pairs so far.

    Parameters
    ----------
    nodes : int
    seed : int

    Members
    -------
    pairs : Counter of (str, str)
        Number of times that the second kind of command has followed the first.
    last : str
        Kind of the latest command, or the reason for its end.
    """

    def __init__(self, nodes: int, seed: int) -> None:
        self.nodes = nodes
        self.pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        self.last = ""
        self.programs = Programs(masks={}, layers={})
        self._random = random.Random(seed)
        # Operations in which every node receives a block that has passed the odd node.
        self._refusing = [Operation.ALL_REDUCE, Operation.FUSED_UPDATE]
        if 32 * nodes <= DATA // 2:
            self._refusing += [Operation.REDUCE_SCATTER, Operation.ALL_GATHER]
        self._used: collections.Counter[str] = collections.Counter()
        self._epoch = 0
        self._flags = 0
        self._tag = 0
        self._number = 0  # of the latest collective
        self._ran: int | None = None  # number of the latest collective that all nodes have run, if it is known
        self._half = False  # only the lower half of data is known, since a command on the other half was refused

    def begin(self) -> None:
        """Begin a new batch, in which no flag is known to be set, and the contents of all memories are known."""
        self._flags = 0
        self._half = False
        self._ran = None

    @property
    def _end(self) -> int:
        return DATA // 2 if self._half else DATA

    @property
    def _state_end(self) -> int:
        return CONFIG.state_words // 2 if self._half else CONFIG.state_words

    def next_epoch(self) -> int:
        """Advance and return the epoch of the commands that follow."""
        self._epoch = (self._epoch + 1) % 256
        return self._epoch

    def step(self, *, ring: bool = False) -> Step:
        """Make the next command; with ``ring`` a collective that ends with OK if nothing disturbs it."""
        kinds = [operation.name.lower() for operation in _RING] if ring else [
            kind for kind in KINDS if (kind != _REFUSED or (self.nodes > 1 and not self._half))
            and (kind != "repeated" or self._ran is not None)]
        self._random.shuffle(kinds)
        # Prefer the rarest pair and, in most steps, the rarest kind of those. The last kind is never the rarest, so
        # some steps skip the second preference.
        rare = self._random.random() < 0.7
        kind = min(kinds, key=lambda kind: (self.pairs[self.last, kind], self._used[kind] if rare else 0))
        self._used[kind] += 1
        self.pairs[self.last, kind] += 1
        self.last = kind
        return self._make(kind)

    def _make(self, kind: str) -> Step:
        choose = self._random
        self._tag = (self._tag + 1) % (1 << 16)
        status: EventStatus | None = EventStatus.OK
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
        flags = {"tag": self._tag, "signal": choose.getrandbits(15) & choose.getrandbits(15), "wait": 0}
        if kind == "wait_timeout":
            flags["wait"] = _NEVER_SET
        elif kind in _GOOD and choose.random() < 0.5:
            flags["wait"] = self._flags & choose.getrandbits(16)
        if status is EventStatus.OK:
            self._flags = self._flags & ~flags["wait"] | flags["signal"]
        commands = [dataclasses.replace(command, **flags) for command in commands]
        if kind == _REFUSED:
            self.next_epoch()
        return Step(kind=kind, commands=commands, status=status)

    def _noise(self) -> dict[str, int]:
        """Draw random values for all fields but the operation, flags and tag."""
        choose = self._random
        noise = {name: choose.getrandbits(width) for name, (_, width) in places(command_layout()).items()
                 if name not in ("operation", "wait", "signal", "tag") and not name.startswith("reserved")}
        # Values that are valid in a collective are more likely to do harm.
        likely = {"rank": choose.randrange(16), "size": choose.choice([0, 1, 2, 16, 32, 64]), "port": 0,
                  "gradient_base": 32 * choose.randrange(32), "weight_base": 32 * choose.randrange(32),
                  "state_base": 32 * choose.randrange(16), "length": choose.randrange(CONFIG.gradient_words + 1)}
        noise.update({name: value for name, value in likely.items() if choose.random() < 0.5})
        return noise

    def _extent(self, start: int, most: int) -> tuple[int, int]:
        """Draw a base and a length in the data part of a memory."""
        choose = self._random
        base = 32 * choose.randrange(start // 32, self._end // 32)
        room = min(self._end - base, most)
        return base, min(room, choose.choice([0, 1, choose.randrange(1, 33), choose.randrange(1, 129),
                                              choose.randrange(1, 129), choose.randrange(1, room + 1)]))

    def _good(self, operation: Operation, *, upper: bool = False, number: int | None = None) -> list[Command]:
        """Make commands that end with OK if nothing disturbs them; with ``upper`` on the upper half of data alone. A
        collective has the next number, or the given one."""
        choose = self._random
        start, state_start = (DATA // 2, CONFIG.state_words // 2) if upper else (0, 0)
        used: dict[str, int] = {}
        if operation in _RING:
            if number is None:
                number = self._number = (self._number + 1) % _ANOTHER
            most = DATA
            if operation is Operation.FUSED_UPDATE:
                used["state_base"] = state_start if upper else 32 * choose.randrange(self._state_end // 32)
                most = (self._state_end - used["state_base"]) * self.nodes
            bases = [self._extent(start, most) for _ in range(2)]
            used["length"] = min(length for _, length in bases)
            stride = 1 if upper else choose.choice([1, 1, 1, 2, 3])
            used["length"] = min(used["length"], *(
                32 * -(-((self._end - base) // 32) // stride) for base, _ in bases))
            if upper:  # a block without elements is passed on without waiting for it
                bases = [(start, 0)] * 2
                used["length"] = DATA - start
            if operation not in (Operation.ALL_GATHER, Operation.BROADCAST):
                used["gradient_base"] = bases[0][0]
            if operation not in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER):
                used["weight_base"] = bases[1][0]
            if operation is Operation.BROADCAST:
                used["root"] = choose.randrange(self.nodes)
            used |= {"size": self.nodes, "port": 0, "epoch": self._epoch, "collective": number,
                     "turn": choose.randrange(self.nodes), "stride": stride}
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
                # The two regions are the same, or do not overlap.
                used = {"gradient_base": target, "state_base": source, "duration": choose.randrange(400),
                        "length": min(length, abs(target - source)) if target != source else length}
            elif operation is Operation.INFER:
                used["weight_base"], (_, source, target) = choose.choice(list(self.programs.layers.items()))
                # Rows of inputs and rows of outputs take 8 elements each, and may not overlap.
                used["length"] = choose.randrange(max(0, min(target - source, self._end - target) // 8) + 1)
            commands.append(Command(operation=operation, **{**self._noise(), **used}))
        return commands

    def _rejected(self, kind: str) -> list[Command]:
        choose = self._random
        if kind == "unknown_operation":
            operation = choose.choice([10, 11, 99, 255])
            return [Command(operation=operation, **self._noise()) for _ in range(self.nodes)]  # type: ignore[arg-type]
        if kind == "wait_timeout":
            return self._good(choose.choice(_OPERATIONS))
        if kind in ("bad_mask", "bad_layer"):
            operation = Operation.MASK if kind == "bad_mask" else Operation.INFER
            used = {"gradient_base": 0, "weight_base": CONFIG.weight_words, "state_base": 0,
                    "length": choose.randrange(1, DATA)}  # a list without an entry
            return [Command(operation=operation, **{**self._noise(), **used}) for _ in range(self.nodes)]
        commands = self._good(choose.choice(_RING), number=self._ran or 0)
        if kind == "repeated":
            return commands
        if kind == "bad_stride":
            wrong = choose.choice([{"stride": 0}, {"turn": self.nodes}, {"turn": 255}])
        elif kind == "bad_rank":
            wrong = choose.choice([{"size": 0}, {"size": 17}, {"rank": self.nodes}, {"port": 1}])
        elif kind == "bad_base":
            wrong = {name: choose.choice([1, 1040, 1 << 31]) for name in ("gradient_base", "weight_base")}
        else:
            wrong = {"length": choose.choice([CONFIG.gradient_words + 1, 1 << 31])}
        return [dataclasses.replace(command, **wrong) for command in commands]
