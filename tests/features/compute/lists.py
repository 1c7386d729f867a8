"""Units that process LAYERS lists, combined in one design so that tests share a build, and random lists."""

import dataclasses
import functools

import numpy as np
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import access_layout
from hdl.features.compute.instruction_checker import InstructionChecker
from hdl.features.compute.layer_list import (
    BASE_BITS,
    INSTRUCTION_WORDS,
    OWNER_BITS,
    Initial,
    Kind,
    Place,
    RowFunction,
    VectorProgram,
    centroid_layout,
    gemm_layout,
    row_layout,
    vector_layout,
)
from hdl.features.compute.list_runner import ListRunner
from hdl.features.compute.memory_access import MemoryAccess
from hdl.host_access import HostAccess
from hdl.masking.mask import INDEX_BITS, mask_layout
from hdl.memory import LanedMemory
from hdl.streams.stream import connect_stream, word_layout
from sim.golden.features.compute.compute import Engine, pack
from sim.golden.features.compute.row_instruction import ROW_USES
from sim.verilated.vectors import Unit

#: Number of elements in the gradient, weight and activation memories.
WORDS = (256, 192, 1024)
BLOCKS = 32
#: Options of the units, keyed by number of lanes: array rows, centroids, and width of a buffer number. SCALE_MASK
#: and SEQUENCES list the numbers of lanes with which a unit supports scale and mask, and sequence functions.
ROWS = {2: 2, 4: 4, 8: 1}
SCALE_MASK = SEQUENCES = (4,)
CENTROIDS = {4: 16}
OWNERS = {4: OWNER_BITS}
END = np.zeros(INSTRUCTION_WORDS, np.uint32)

#: Widths of the fields that are used only by instructions with a scale or mask.
_SCALE_MASK = {name: gemm_layout()[name].width for name in ("scale", "alternative", *mask_layout(INDEX_BITS).members)
               if name != "external"}


class Walk(wiring.Component):
    """A list runner with its memory access, and an activation memory filled by the host."""

    def __init__(self, lanes):
        self._lanes = lanes
        self._kinds = ("gemm", "vector", *(("centroid",) if lanes in CENTROIDS else ()),
                       *(("rows",) if lanes in SEQUENCES else ()))
        self._runner = ListRunner(words=WORDS, lanes=lanes, rows=ROWS[lanes], blocks=BLOCKS,
                                  scale_mask=lanes in SCALE_MASK, centroids=CENTROIDS.get(lanes, 0),
                                  sequences=lanes in SEQUENCES, owner_bits=OWNERS.get(lanes, 0))
        self._access = HostAccess(rows=(WORDS[2] // lanes,), lanes=lanes)
        ports = self._runner.signature.members
        super().__init__({
            **{name: ports[name] for name in ports if name not in ("request", "response")},
            "host_write": In(stream.Signature(access_layout())), "host_words": In(stream.Signature(word_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        m.submodules.runner = runner = self._runner
        m.submodules.host = host = self._access
        m.submodules.access = access = MemoryAccess(rows=tuple(words // lanes for words in WORDS), lanes=lanes)
        m.submodules.memory = memory = LanedMemory(rows=WORDS[2] // lanes, lanes=lanes, readers=1, writers=1)
        for source, sink in ((runner.request, access.request), (access.response, runner.response),
                             *((getattr(runner, name), getattr(self, name)) for name in self._kinds),
                             (self.host_write, host.write.request), (self.host_words, host.write.data)):
            connect_stream(m, source, sink)
        wiring.connect(m, access=access.read_2, memory=memory.read[0])
        wiring.connect(m, host=host.write_0, memory=memory.write[0])
        for name in ("start", "list_base", "state_base", "length", "settled", "unit_done", "unit_bad"):
            m.d.comb += getattr(runner, name).eq(getattr(self, name))
        for name in (*(f"{kind}_runs" for kind in self._kinds), "passed", "done", "bad", "number"):
            m.d.comb += getattr(self, name).eq(getattr(runner, name))
        return m


class Units(wiring.Component):
    """Independent units in one component, with ports grouped under each unit's name."""

    def __init__(self):
        self._units = {
            **{f"checker_{lanes}": InstructionChecker(
                words=WORDS, lanes=lanes, rows=rows, blocks=BLOCKS, scale_mask=lanes in SCALE_MASK,
                centroids=CENTROIDS.get(lanes, 0), sequences=lanes in SEQUENCES,
                owner_bits=OWNERS.get(lanes, 0))
               for lanes, rows in ROWS.items()},
            **{f"walk_{lanes}": Walk(lanes) for lanes in (2, 4)},
            "access": MemoryAccess(rows=(8, 2, 32), lanes=2, owner_bits=OWNER_BITS),
        }
        super().__init__({name: Out(unit.signature) for name, unit in self._units.items()})

    def elaborate(self, platform):
        m = Module()
        for name, unit in self._units.items():
            m.submodules[name] = unit
            wiring.connect(m, wiring.flipped(getattr(self, name)), unit)
        return m


@functools.cache
def units():
    return Unit(Units(), name="ListUnits")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Fields of a LAYERS command that affect the execution of its list."""

    list_base: int
    state_base: int
    length: int


def draw_command(generator, *, most=12):
    """Draw a command with its list in the upper half of the activation memory, possibly up to its end."""
    length = int(generator.integers(1, most + 1))
    if generator.random() < 0.05:
        length = int(generator.choice([4095, 4096, (1 << 32) - 1]))
    base = int(generator.choice([512, 768, 32 * generator.integers(20, 33)]))
    state = int(generator.choice([0, 8, 32, 64, (1 << 32) - 8 if generator.random() < 0.2 else 16]))
    return Command(list_base=base, state_base=state, length=length)


def _operand(generator, rows, columns, lanes, command, *, place=None, stride=None, inside=False):
    """Draw an operand at a random address, sometimes beyond its memory; return it with its stride."""
    place = int(generator.choice([0, 1, 2, 2])) if place is None else place
    if stride is None:
        stride = lanes * (-(-columns // lanes) + int(generator.choice([0, 0, 1])))
    step = 1 if inside else lanes
    room = (WORDS[place] if place < 2 else command.list_base) - (min(rows, 64) - 1) * stride - columns
    base = step * int(generator.integers(max(room, 0) // step + 1))
    if generator.random() < 0.02:
        base = -(-(WORDS[place] - columns - (rows - 1) * stride) // step) * step  # the last valid base, or the next
        base = max(base, 0)
    relative = int(base >= command.state_base and generator.random() < 0.5)
    return {"base": base - relative * command.state_base, "place": place, "relative": relative,
            "owner": int(generator.integers(5))}, stride


def _size(generator, command, *, most=12):
    if generator.random() < 0.25:
        return 0, command.length
    size = int(generator.integers(1, most + 1))
    return size, size


def _gemm(generator, lanes, command):
    (m, rows), (k, terms), (n, columns) = (_size(generator, command) for _ in range(3))
    fields = {"kind": Kind.GEMM, "m": m, "k": k, "n": n, "relu": int(generator.integers(2)),
              "transpose_a": int(generator.integers(2)), "transpose_b": int(generator.integers(2)),
              "initial": int(generator.choice([Initial.ZERO, Initial.MATRIX])), "gated": int(generator.integers(2)),
              "tile": int(generator.integers(4)), "row_tiles": int(generator.integers(2)),
              "column_tiles": int(generator.integers(2)), "rounds": int(generator.integers(3, 5)),
              "order": int(generator.integers(3))}
    # An unused scale or mask can have any value.
    fields |= {name: int(generator.integers(1 << width)) for name, width in _SCALE_MASK.items()}
    if lanes in SCALE_MASK:
        fields |= {name: int(generator.integers(2)) for name in ("scaled", "masked")}
    shapes = {"a": (terms, rows) if fields["transpose_a"] else (rows, terms),
              "b": (columns, terms) if fields["transpose_b"] else (terms, columns),
              "c": (rows, columns), "start": (rows, columns), "gate": (rows, columns)}
    for name, shape in shapes.items():
        space = int(generator.choice([0, 2])) if name == "c" else 3 if name in "ab" and generator.random() < 0.1 \
            else None
        if space == 3:
            fields |= {name: {"base": int(generator.integers(1 << BASE_BITS)), "place": 3, "relative": 1},
                       f"stride_{name}": int(generator.integers(1 << 16))}
            continue
        fields[name], fields[f"stride_{name}"] = _operand(generator, *shape, lanes, command, place=space)
    if generator.random() < 0.3:
        fields |= {"start": fields["c"], "stride_start": fields["stride_c"]}
    elif generator.random() < 0.4:
        fields["stride_start"] = 0
    # An unused operand may have any value.
    for name, used in (("start", fields["initial"]), ("gate", fields["gated"])):
        if not used and generator.random() < 0.5:
            fields |= {name: {"base": int(generator.integers(1 << BASE_BITS)), "place": 7, "relative": 1},
                       f"stride_{name}": int(generator.integers(1 << 16))}
    return fields


def _vector(generator, lanes, command):
    (rows, count), (columns, width) = (_size(generator, command) for _ in range(2))
    softmax = lanes in SEQUENCES and generator.random() < 0.4
    function = VectorProgram.SOFTMAX if softmax else VectorProgram.CROSS_ENTROPY
    fields = {"kind": Kind.VECTOR, "function": function, "rows": rows, "columns": columns}
    fields["source"], fields["stride_source"] = _operand(generator, count, width, lanes, command)
    fields["target"], fields["stride_target"] = _operand(generator, count, width, lanes, command,
                                                         place=int(generator.choice([0, 2])))
    fields["labels"], fields["stride_labels"] = _operand(generator, count, 1, lanes, command, inside=True,
                                                         stride=int(generator.integers(4)))
    fields["loss"], _ = _operand(generator, 1, 1, lanes, command, inside=True, place=int(generator.choice([0, 2])))
    if softmax and generator.random() < 0.5:
        fields |= {name: _anything(generator) for name in ("labels", "loss")}
    return fields


def _anything(generator):
    """Draw an operand that is invalid in every instruction that uses it."""
    return {"base": int(generator.integers(1 << BASE_BITS)), "place": 7, "relative": 1}


def _rows(generator, lanes, command):
    (rows, count), (columns, width) = (_size(generator, command) for _ in range(2))
    function = RowFunction(int(generator.integers(len(RowFunction))))
    table = {RowFunction.GATHER: "x", RowFunction.SCATTER: "target"}.get(function)
    begins = function in (RowFunction.NORM, RowFunction.NORM_BACK, RowFunction.GATHER) and generator.random() < 0.5
    fields = {"kind": Kind.ROWS, "function": function, "started": int(begins or function is RowFunction.ADD),
              "rows": rows, "columns": columns, "count": int(generator.integers(1 << 16)),
              "factor": int(generator.integers(1 << 32)), "epsilon": int(generator.integers(1 << 32))}
    shapes = {**dict.fromkeys(("x", "y", "start", "target", "second", "third"), (count, width)),
              **dict.fromkeys(("scale", "shift"), (1, width)), "deviation": (1, count)}
    if table:
        fields["count"], height = _size(generator, command)
        shapes[table] = height, width
    for name, shape in shapes.items():
        writes = name in ("target", "second", "third") or (name == "deviation" and function is RowFunction.NORM)
        space = int(generator.choice([0, 2])) if writes else None
        fields[name], stride = _operand(generator, *shape, lanes, command, place=space)
        if f"stride_{name}" in row_layout().members:
            fields[f"stride_{name}"] = stride
    if table:
        fields["y"], fields["stride_y"] = _operand(generator, count, 1, lanes, command, inside=True,
                                                   stride=int(generator.integers(4)))
    if generator.random() < 0.3:
        fields["stride_start"] = 0
    if generator.random() < 0.4:  # the result overwrites a source, or starts there with another stride
        name, source = generator.choice(["target", "third"]), generator.choice(["x", "start"])
        fields[name] = fields[source]
        if generator.random() < 0.9:
            fields[f"stride_{name}"] = fields[f"stride_{source}"]
    used = ROW_USES[function] | {"target"} | ({"start"} if fields["started"] else set())
    used |= {"third"} if fields["started"] and function is RowFunction.NORM else set()
    fields |= {name: _anything(generator) for name in shapes if name not in used and generator.random() < 0.5}
    return fields


def _centroid(generator, lanes, command):
    (rows, examples), (columns, inputs), (outputs, width) = (_size(generator, command) for _ in range(3))
    gradient = int(generator.integers(2))
    fields = {"kind": Kind.CENTROID, "gradient": gradient, "rows": rows, "columns": columns, "outputs": outputs}
    fields |= {name: int(generator.integers(2)) * (1 - gradient) for name in ("initial", "relu", "gated")}
    centroids = CENTROIDS.get(lanes, 16)
    shapes = {"target": (1, centroids) if gradient else (examples, width), "x": (examples, inputs),
              "indices": (-(-width // lanes), -(-inputs // 8) * lanes), "start": (examples, width),
              "table": (1, centroids), "gate": (examples, width)}
    for name, shape in shapes.items():
        space = int(generator.choice([0, 2])) if name == "target" else None
        fields[name], stride = _operand(generator, *shape, lanes, command, place=space)
        if name != "table":
            fields[f"stride_{name}"] = stride
    if not gradient and generator.random() < 0.3:
        fields["stride_start"] = 0
    # An unused operand can have any value, and so can the stride of a single row.
    for name, used in (("start", gradient or fields["initial"]), ("gate", fields["gated"]), ("table", not gradient)):
        if not used and generator.random() < 0.5:
            fields[name] = {"base": int(generator.integers(1 << BASE_BITS)), "place": 7, "relative": 1}
    if gradient:
        fields["stride_target"] = int(generator.integers(1 << 16))
    return fields


def _spoil(generator, fields, layout, lanes):
    """Set a field to a value at or near a limit, or to a random value."""
    name = str(generator.choice([name for name, _ in layout if name != "kind"]))
    width = layout[name].width
    if isinstance(fields.get(name), dict):
        inner = str(generator.choice(["base", "place", "relative"]))
        base = fields[name]["base"]
        value = {"base": int(generator.choice([base + 1, base + lanes, (1 << BASE_BITS) - lanes, WORDS[2] - lanes])),
                 "place": int(generator.integers(8)), "relative": 1 - fields[name]["relative"]}[inner]
        return {**fields, name: {**fields[name], inner: value}}
    end, value = 1 << min(width, 62), fields.get(name, 0)
    values = [0, 1, lanes, end - 1, int(generator.integers(end))]
    if width == 16:
        values += [4095, 4096, value + 1, max(value - lanes, 0)]
    value = int(generator.choice(values))
    return {**fields, name: value}


def engine(lanes, kind=Engine):
    return kind(rows=ROWS[lanes], lanes=lanes, blocks=BLOCKS, scale_mask=lanes in SCALE_MASK,
                centroids=CENTROIDS.get(lanes, 0), sequences=lanes in SEQUENCES)


class _Far(Engine):
    """Engine that allows lists, but not operands, beyond the end of the activation memory."""

    def _instruction(self, words, length, offset, sizes):
        return super()._instruction(words, length, offset, {**sizes, Place.ACTIVATIONS: WORDS[2]})


def at(space, base, *, relative=0):
    return {"place": space, "base": base, "relative": relative}


def golden_list(lanes, command, instructions):
    """Return the jobs of a list up to its first invalid instruction, and the index of this instruction or None."""
    far = np.zeros(command.list_base + INSTRUCTION_WORDS * len(instructions), np.uint32)
    far[command.list_base:] = np.concatenate(instructions)
    memories = {Place.GRADIENTS: np.zeros(WORDS[0]), Place.WEIGHTS: np.zeros(WORDS[1]), Place.ACTIVATIONS: far}
    return engine(lanes, _Far).check(
        memories, base=command.list_base, length=command.length, offset=command.state_base)


def _drawn(generator, lanes, command):
    """Draw a (usually valid) instruction; return its layout and fields."""
    tries = 1 if generator.random() < 0.1 else 50
    for _ in range(tries):
        draw = generator.random()
        layout, fill = (gemm_layout(), _gemm) if draw < 0.7 else (vector_layout(), _vector)
        if draw < 0.2 and (lanes in CENTROIDS or tries == 1):
            layout, fill = centroid_layout(), _centroid
        elif draw < 0.45 and (lanes in SEQUENCES or tries == 1):
            layout, fill = row_layout(), _rows
        fields = fill(generator, lanes, command)
        if golden_list(lanes, command, [pack(layout, fields), END])[1] is None:
            break
    return layout, fields


def draw_list(generator, lanes, command, count, *, flaws=0.1, bits=0.05):
    """Draw the words of ``count`` instructions, most of them valid, followed by an END."""
    instructions = []
    for _ in range(count):
        layout, fields = _drawn(generator, lanes, command)
        if generator.random() < flaws:
            fields = _spoil(generator, fields, layout, lanes)
        if generator.random() < flaws / 2:  # move a target onto the list or next to it
            name = {Kind.GEMM: "c", Kind.VECTOR: "loss"}.get(fields["kind"], "target")
            if fields["kind"] == Kind.ROWS:
                name = str(generator.choice(["target", "second", "third", "deviation"]))
            base = max(command.list_base + lanes * int(generator.integers(-2, 4 * count)), 0)
            fields[name] = {"base": base, "place": Place.ACTIVATIONS, "relative": 0}
        words = pack(layout, fields)
        if generator.random() < bits:
            words[generator.integers(INSTRUCTION_WORDS)] ^= np.uint32(1 << int(generator.integers(32)))
        instructions.append(words)
    end = END.copy()
    if generator.random() < 0.03:
        end[generator.integers(INSTRUCTION_WORDS)] |= np.uint32(1 << int(generator.integers(4, 32)))
    return [*instructions, end]
