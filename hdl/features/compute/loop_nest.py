"""Loop nest of a matrix product: panels to load, tiles, and the operands of each cycle."""

import functools
import operator

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.array import TILES
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.streams.stream import Queue

__all__ = ["SIZE_BITS", "LoopNest", "Order", "beat_layout", "extents", "fits", "job_layout", "panel_layout",
           "tile_layout"]

#: Width in bits of the sizes of a product.
SIZE_BITS = 12

_SLOT_BITS = SLOTS.bit_length() - 1
_MAX_TILES = 7
_MAX_ROUNDS = 15


class Order(enum.Enum, shape=2):
    """Order of the outer loops, outermost first."""

    MNK = 0
    NMK = 1
    KMN = 2


def job_layout():
    """Layout of an ``m`` x ``k`` by ``k`` x ``n`` matrix product: sizes, loop factors and order.

    A panel has 2 ** ``row_tiles`` by 2 ** ``column_tiles`` register tiles of the form ``tile``, with 2 ** ``rounds``
    terms per sum. ``resume`` makes sums start from the elements of C; if these are ``common`` to all rows, one round
    initializes all rows of units. ``align_m`` and ``align_k`` are set if memory rows of an operand run along m or k,
    where panels must then begin at multiples of the number of lanes.
    """
    return data.StructLayout({
        "m": SIZE_BITS, "n": SIZE_BITS, "k": SIZE_BITS, "tile": range(TILES), "row_tiles": range(_MAX_TILES + 1),
        "column_tiles": range(_MAX_TILES + 1), "rounds": range(_MAX_ROUNDS + 1), "order": 2, "resume": 1,
        "common": 1, "align_m": 1, "align_k": 1})


def panel_layout():
    """Layout of a load of panels: first row, column and term, and whether to load A, B or both."""
    return data.StructLayout({"m": SIZE_BITS, "n": SIZE_BITS, "k": SIZE_BITS, "a": 1, "b": 1})


def tile_layout():
    """Layout of a tile: its first row and column, and its form.

    ``initial`` requests the tile's initial values. A ``partial`` result is the initial value of a later pass over the
    same tile, which is marked ``again``. ``opens`` marks the first tile of a panel.
    """
    return data.StructLayout({
        "m": SIZE_BITS, "n": SIZE_BITS, "tile": range(TILES), "initial": 1, "partial": 1, "again": 1, "opens": 1})


def beat_layout(rows, lanes, blocks):
    """Layout of one cycle of the array: blocks of A and B to read, their column, and the array's marks.

    In an ``initial`` beat, nothing is read: the term of ``initial_row``, or of all rows if ``common``, is an element
    of C. ``release_a`` and ``release_b`` end the use of a panel; ``final`` ends the product.
    """
    part = {"part": range(lanes // rows)} if rows < lanes else {}
    first = {"initial_row": range(rows), "common": 1} if rows > 1 else {}
    return data.StructLayout({
        "a": range(blocks), "b": range(blocks), "row": range(lanes), **part, "initial": 1, **first, "first": 1,
        "last": 1, "tile": range(TILES), "release_a": 1, "release_b": 1, "final": 1})


def _step_layout():
    """Layout of a step: a pair of panels and the properties of their tiles."""
    return data.StructLayout({
        "m": SIZE_BITS, "n": SIZE_BITS, "left": SIZE_BITS, "initial": 1, "common": 1, "first": 1, "last": 1,
        "partial": 1, "again": 1, "release_a": 1, "release_b": 1, "final": 1})


def extents(job, *, rows, lanes):
    """Base-2 logarithms of the number of rows, columns and terms in a job's panel."""
    row_bits, lane_bits = rows.bit_length() - 1, lanes.bit_length() - 1
    return {"m": job.tile + job.row_tiles + row_bits,
            "n": ~job.tile + job.column_tiles + lane_bits, "k": job.rounds}  # ~tile is 3 - tile


def fits(job, strides, *, lanes, blocks, terms=1):
    """Whether panels of these sizes fit in the blocks and are aligned, and whether the product's sizes and order are
    valid.

    If sums leave the array between panels, each panel must consist of whole groups of ``terms`` terms.
    """
    lane_bits, block_bits = lanes.bit_length() - 1, blocks.bit_length() - 1
    groups = {name: Mux(stride > lane_bits, stride - lane_bits, 0)[:5] for name, stride in strides.items()}
    aligned = ~functools.reduce(operator.or_, (
        flag & (strides[name] == bits) & (job[name] > 1 << bits)
        for name, flag in (("m", job.align_m), ("k", job.align_k)) for bits in range(lane_bits)))
    whole = C(1, 1)
    if terms > 1:
        holds = (job.row_tiles == 0) & (job.column_tiles == 0) & (job.order != Order.KMN.value)
        length = terms.bit_length() - 1
        whole = holds | (job.rounds >= length) | functools.reduce(operator.or_, (
            (job.rounds == rounds) & (job.k <= 1 << rounds) for rounds in range(length)))
    return (aligned & whole & (groups["m"] + groups["k"] <= block_bits) & (groups["n"] + groups["k"] <= block_bits)
            & job.m.any() & job.n.any() & job.k.any() & (job.order != Order.KMN.value + 1))


class LoopNest(wiring.Component):
    """Iterate over the loops of a matrix product.

    Level 0 is the register tile, with one beat per slot and term. Level 1 is the panel: its tiles are processed row
    by row, each with all terms of the panel. Level 2 steps through panels in one of three orders. A panel of A or B
    is loaded if its rows, columns or terms differ from the previous step, and released if they differ from the next
    step. Tiles begin within m by n and contain no terms beyond k.

    If a panel has one tile and k is the innermost loop, sums stay in the array from panel to panel. Otherwise, each
    panel outputs results, which become the initial values of the next panel with the same rows and columns, and each
    tile takes ``rows`` additional rounds. In all cases, terms are added in ascending order of k. Initial values that
    are common to all rows take one round.

    The block of elements (i, k) of a panel, in units of ``lanes``, is i | reversed(k): as the factors are powers of
    two, rows use its low bits and terms its high bits. A product with panels that do not fit or are not aligned,
    or with a size of zero or an unknown order, is rejected: ``bad`` is high for one cycle, :attr:`checked` cycles
    after it was accepted.

    One beat is offered per cycle, also across steps, the first one :attr:`latency` cycles after the job is accepted.
    Steps are planned two ahead: ``panels`` offers the next panels while beats read the current ones, and the panels
    after these as soon as the next ones have been taken. ``tiles`` then also offers the tiles of a step, one every
    three cycles; the next step is planned when all tiles of a step have been taken. ``o`` and ``tiles`` are
    registers; ``job.ready`` and the offers of ``panels`` are functions of registers.

    Parameters
    ----------
    rows : int
        Number of rows of the array: 1, 2 or 4.
    lanes : int
        Number of columns of the array and of elements in a memory row: 2, 4 or 8, at least ``rows``.
    blocks : int
        Number of blocks in a panel, a power of two from 2 to 512.
    terms : int
        Number of terms added in one step, all from the same panel: a power of two.

    Members
    -------
    job : In(stream of job_layout())
    panels : Out(stream of panel_layout())
    tiles : Out(stream of tile_layout())
    o : Out(stream of beat_layout(rows, lanes, blocks))
    bad : Out(1)
    """

    #: Latency in cycles from when a job is accepted until ``bad``, and until its first beat.
    checked = 3
    latency = 9

    def __init__(self, *, rows, lanes, blocks=128, terms=1):
        if not isinstance(rows, int) or rows not in (1, 2, 4):
            raise ValueError(f"Row count must be 1, 2 or 4, not {rows!r}")
        if not isinstance(lanes, int) or lanes not in (2, 4, 8):
            raise ValueError(f"Lane count must be 2, 4 or 8, not {lanes!r}")
        if rows > lanes:
            raise ValueError(f"Row count must be at most the lane count {lanes}, not {rows!r}")
        if not isinstance(blocks, int) or not 2 <= blocks <= 512 or blocks & (blocks - 1):
            raise ValueError(f"Block count must be a power of two between 2 and 512, not {blocks!r}")
        self._rows = rows
        self._lanes = lanes
        self._blocks = blocks
        self._terms = terms
        super().__init__({
            "job": In(stream.Signature(job_layout())),
            "panels": Out(stream.Signature(panel_layout())),
            "tiles": Out(stream.Signature(tile_layout())),
            "o": Out(stream.Signature(beat_layout(rows, lanes, blocks))),
            "bad": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        job = Signal(job_layout(), reset_less=True)
        step = Signal(_step_layout())
        offered = Signal()
        take = Signal()
        announced = Signal()
        announce = Signal()
        m.submodules.ahead = ahead = Queue(shape=step.shape(), depth=1)
        m.d.comb += [ahead.i.valid.eq(offered), ahead.i.payload.eq(step), ahead.o.ready.eq(take)]
        self._elaborate_steps(m, job, step, (offered, ahead.i.ready), (announced, announce),
                              ~ahead.o.valid | take)
        self._elaborate_tiles(m, job, step, announced, announce)
        self._elaborate_beats(m, job, ahead.o.payload, ahead.o.valid, take)
        return m

    def _elaborate_steps(self, m, job, step, beats, tiles, begun):
        """Plan steps ahead of their beats; ``beats`` and ``tiles`` each contain two flags (offered, taken).

        ``begun`` is high when no step is waiting for its beats.
        """
        (offered, take), (announced, announce) = beats, tiles
        names = ("m", "n", "k")
        base = {name: Signal(SIZE_BITS, name=f"base_{name}", reset_less=True) for name in names}
        bits = {name: Signal(4, name=f"bits_{name}", reset_less=True) for name in names}
        stride = {name: Signal(SIZE_BITS + 1, name=f"stride_{name}", reset_less=True) for name in names}
        following = {name: Signal(SIZE_BITS + 2, name=f"following_{name}", reset_less=True) for name in names}
        ends = {name: Signal(name=f"ends_{name}") for name in names}
        single = {name: Signal(name=f"single_{name}", reset_less=True) for name in names}
        changes = {name: Signal(name=f"changes_{name}") for name in names}
        holds = Signal(reset_less=True)  # sums stay in the array from step to step
        load = {name: Signal(name=f"load_{name}", reset_less=True) for name in "ab"}
        inner_k = job.order != Order.KMN.value
        final = ends["m"] & ends["n"] & ends["k"]
        for name in names:
            m.d.comb += ends[name].eq(following[name] >= job[name])
        with m.If(inner_k):
            m.d.comb += changes["k"].eq(~single["k"])
            with m.If(job.order == Order.MNK.value):
                m.d.comb += [changes["n"].eq(ends["k"] & ~single["n"]), changes["m"].eq(ends["k"] & ends["n"])]
            with m.Else():
                m.d.comb += [changes["m"].eq(ends["k"] & ~single["m"]), changes["n"].eq(ends["k"] & ends["m"])]
        with m.Else():
            m.d.comb += [changes["n"].eq(~single["n"]), changes["m"].eq(ends["n"] & ~single["m"]),
                         changes["k"].eq(ends["n"] & ends["m"])]
        other = {"a": changes["m"] | changes["k"], "b": changes["n"] | changes["k"]}
        moves = dict.fromkeys(names, C(1, 1))
        moves["n"] = Mux(job.order == Order.MNK.value, ends["k"], Mux(inner_k, ends["k"] & ends["m"], 1))
        moves["m"] = Mux(job.order == Order.MNK.value, ends["k"] & ends["n"], Mux(inner_k, ends["k"], ends["n"]))
        moves["k"] = inner_k | (ends["n"] & ends["m"])

        taken = Signal()
        with m.FSM():
            with m.State("Idle"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += job.eq(self.job.payload)
                with m.If(self.job.valid):
                    m.next = "Scale"
            with m.State("Scale"):
                extent = extents(job, rows=self._rows, lanes=self._lanes)
                m.d.sync += [bits[name].eq(value) for name, value in extent.items()]
                m.next = "Check"
            with m.State("Check"):
                for name in names:
                    m.d.sync += [base[name].eq(0), stride[name].eq(1 << bits[name])]
                m.d.sync += [holds.eq(inner_k & (job.row_tiles == 0) & (job.column_tiles == 0)),
                             load["a"].eq(1), load["b"].eq(1),
                             self.bad.eq(~fits(job, bits, lanes=self._lanes, blocks=self._blocks,
                                           terms=self._terms))]
                m.next = "Decide"
            with m.State("Decide"):
                m.d.sync += self.bad.eq(0)
                m.d.sync += [single[name].eq(job[name] <= stride[name]) for name in names]
                m.next = "Add"
                with m.If(self.bad):
                    m.next = "Idle"
            with m.State("Add"):
                m.d.sync += [following[name].eq(base[name] + stride[name]) for name in names]
                m.next = "Plan"
            with m.State("Plan"):
                begins = base["k"] == 0
                with m.If(~self.panels.valid):  # always true: the panels of the previous step have been taken
                    m.d.sync += [self.panels.valid.eq(load["a"] | load["b"]), self.panels.p.a.eq(load["a"]),
                                 self.panels.p.b.eq(load["b"])]
                    m.d.sync += [self.panels.p[name].eq(base[name]) for name in names]
                m.d.sync += [
                    step.m.eq(base["m"]), step.n.eq(base["n"]),
                    step.left.eq(Mux(ends["k"], job.k - base["k"], stride["k"]) - 1),
                    step.first.eq(begins | ~holds), step.last.eq(ends["k"] | ~holds),
                    step.initial.eq(Mux(begins, job.resume, ~holds)),
                    step.common.eq(begins & job.resume & job.common), step.partial.eq(~ends["k"] & ~holds),
                    step.again.eq(~begins), announced.eq(begins | ~holds),
                    step.release_a.eq(final | other["a"]), step.release_b.eq(final | other["b"]),
                    step.final.eq(final), offered.eq(1)]
                m.next = "Offer"
            with m.State("Offer"):
                m.d.comb += taken.eq((~offered | take) & (~announced | announce)
                                     & (~self.panels.valid | self.panels.ready))
                with m.If(take):
                    m.d.sync += offered.eq(0)
                with m.If(announce):
                    m.d.sync += announced.eq(0)
                with m.If(self.panels.ready):
                    m.d.sync += self.panels.valid.eq(0)
                with m.If(taken):
                    m.d.sync += [load[name].eq(value) for name, value in other.items()]
                    for name in names:
                        with m.If(moves[name]):
                            m.d.sync += base[name].eq(Mux(ends[name], 0, following[name]))
                    m.next = "Add"
                    with m.If(final):
                        m.next = "Finish"
            with m.State("Finish"):
                # The beats of the last step start with the job's fields, which must be held until then.
                with m.If(begun):
                    m.next = "Idle"

    def _elaborate_tiles(self, m, job, step, announced, announce):
        """Announce the tiles of a step, one every three cycles: add, compare, offer."""
        names = ("m", "n")
        now = Signal(_step_layout(), name="tile_step", reset_less=True)
        opens = Signal(reset_less=True)
        at = {name: Signal(SIZE_BITS, name=f"tile_at_{name}", reset_less=True) for name in names}
        number = {name: Signal(_MAX_TILES, name=f"tile_number_{name}", reset_less=True) for name in names}
        beyond = {name: Signal(SIZE_BITS + 1, name=f"tile_beyond_{name}", reset_less=True) for name in names}
        edge = {name: Signal(name=f"tile_edge_{name}", reset_less=True) for name in names}
        # The next job may replace this one before the last tile is announced.
        tile_job = Signal(job.shape(), name="tile_job", reset_less=True)
        extent = {"m": self._rows << tile_job.tile, "n": (SLOTS * self._lanes) >> tile_job.tile}
        most = {"m": (1 << tile_job.row_tiles) - 1, "n": (1 << tile_job.column_tiles) - 1}
        free = ~self.tiles.valid | self.tiles.ready
        with m.If(self.tiles.ready):
            m.d.sync += self.tiles.valid.eq(0)
        with m.FSM(name="tiles_fsm"):
            with m.State("Wait"):
                m.d.comb += announce.eq(announced)
                m.d.sync += [now.eq(step), opens.eq(1), at["m"].eq(step.m), at["n"].eq(step.n)]
                m.d.sync += [tile_job.eq(job), *(number[name].eq(0) for name in names)]
                with m.If(announced):
                    m.next = "Add"
            with m.State("Add"):
                m.d.sync += [beyond[name].eq(at[name] + extent[name]) for name in names]
                m.next = "Compare"
            with m.State("Compare"):
                m.d.sync += [edge[name].eq((beyond[name] >= tile_job[name]) | (number[name] == most[name]))
                             for name in names]
                m.next = "Offer"
            with m.State("Offer"):
                with m.If(free):
                    m.d.sync += [
                        self.tiles.valid.eq(1), self.tiles.p.tile.eq(tile_job.tile), self.tiles.p.opens.eq(opens),
                        *(self.tiles.p[name].eq(at[name]) for name in names),
                        *(self.tiles.p[name].eq(now[name]) for name in ("initial", "partial", "again")),
                        opens.eq(0), at["n"].eq(Mux(edge["n"], now.n, beyond["n"])),
                        number["n"].eq(Mux(edge["n"], 0, number["n"] + 1))]
                    with m.If(edge["n"]):
                        m.d.sync += [at["m"].eq(beyond["m"]), number["m"].eq(number["m"] + 1)]
                    m.next = "Add"
                    with m.If(edge["m"] & edge["n"]):
                        m.next = "Wait"

    def _elaborate_beats(self, m, job, step, offered, take):
        """Generate the beats of a step by iterating over its tiles, terms and slots."""
        rows, lanes = self._rows, self._lanes
        row_bits, lane_bits, block_bits = (count.bit_length() - 1 for count in (rows, lanes, self._blocks))
        active = Signal()
        slot = Signal(range(SLOTS))
        opening = Signal()  # a round of initial values
        number = Signal(SIZE_BITS, reset_less=True)  # index of the term, or of the row that gets initial values
        left = Signal(SIZE_BITS, reset_less=True)
        now = Signal(_step_layout(), reset_less=True)
        form = Signal(range(TILES), reset_less=True)
        row_tiles, column_tiles = Signal(_MAX_TILES, reset_less=True), Signal(_MAX_TILES, reset_less=True)
        at = {name: Signal(SIZE_BITS, name=f"at_{name}", reset_less=True) for name in ("m", "n")}
        tile_number = {name: Signal(_MAX_TILES, name=f"tile_{name}", reset_less=True) for name in ("m", "n")}
        beyond = {name: Signal(SIZE_BITS + 1, name=f"beyond_{name}", reset_less=True) for name in ("m", "n")}
        edge = {name: Signal(name=f"edge_{name}", reset_less=True) for name in ("m", "n")}
        size = {name: Signal(SIZE_BITS, name=f"size_{name}", reset_less=True) for name in ("m", "n")}
        most = {"m": row_tiles, "n": column_tiles}
        extent = {"m": Signal(SIZE_BITS, name="tile_rows", reset_less=True),
                  "n": Signal(SIZE_BITS, name="tile_columns", reset_less=True)}
        for name in ("m", "n"):
            # A tile has at least eight beats, so these registers are settled before its last beat.
            m.d.sync += beyond[name].eq(at[name] + extent[name])
            m.d.sync += edge[name].eq((beyond[name] >= size[name]) | (tile_number[name] == most[name]))

        emit = Signal()
        ends_round, ends_tile, ends_step = Signal(), Signal(), Signal()
        m.d.comb += [
            emit.eq(active & (self.o.ready | ~self.o.valid)),
            ends_round.eq(slot == SLOTS - 1),
            ends_tile.eq(ends_round & ~opening & (left == 0)),
            ends_step.eq(ends_tile & edge["m"] & edge["n"]),
            take.eq(~active | (emit & ends_step)),
        ]
        with m.If(emit):
            m.d.sync += slot.eq(slot + 1)
            with m.If(ends_round):
                m.d.sync += number.eq(number + 1)
                with m.If(opening & (now.common | (number[:max(row_bits, 1)] == rows - 1))):
                    m.d.sync += [opening.eq(0), number.eq(0)]
                with m.If(~opening):
                    m.d.sync += left.eq(left - 1)
            with m.If(ends_tile):
                m.d.sync += [number.eq(0), left.eq(now.left), opening.eq(now.initial),
                             at["n"].eq(Mux(edge["n"], now.n, beyond["n"])),
                             tile_number["n"].eq(Mux(edge["n"], 0, tile_number["n"] + 1))]
                with m.If(edge["n"]):
                    m.d.sync += [at["m"].eq(beyond["m"]), tile_number["m"].eq(tile_number["m"] + 1)]
            with m.If(ends_step):
                m.d.sync += active.eq(0)
        with m.If(take & offered):
            m.d.sync += [
                active.eq(1), now.eq(step), number.eq(0), left.eq(step.left), opening.eq(step.initial),
                form.eq(job.tile), row_tiles.eq((1 << job.row_tiles) - 1),
                column_tiles.eq((1 << job.column_tiles) - 1), at["m"].eq(step.m), at["n"].eq(step.n),
                size["m"].eq(job.m), size["n"].eq(job.n), tile_number["m"].eq(0), tile_number["n"].eq(0),
                extent["m"].eq(rows << job.tile), extent["n"].eq((SLOTS * lanes) >> job.tile)]

        # Row and column groups of the array: tile number, and position of the slot in the tile.
        group = {name: Signal(_MAX_TILES + _SLOT_BITS, name=f"group_{name}") for name in ("m", "n")}
        with m.Switch(form):
            for value in range(TILES):
                low = _SLOT_BITS - value
                with m.Case(value):
                    m.d.comb += [group["m"].eq(Cat(slot[low:], tile_number["m"])),
                                 group["n"].eq(Cat(slot[:low], tile_number["n"]))]
        term = number[lane_bits:lane_bits + block_bits][::-1]
        parts = lane_bits - row_bits
        beat = Signal(self.o.payload.shape(), reset_less=True)
        m.d.comb += self.o.payload.eq(beat)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [
                self.o.valid.eq(emit),
                beat.a.eq(group["m"][parts:] | term), beat.b.eq(group["n"] | term), beat.row.eq(number[:lane_bits]),
                beat.initial.eq(opening), beat.first.eq(now.first & self._opens(now, opening, number)),
                beat.last.eq(now.last & ~opening & (left == 0)), beat.tile.eq(form),
                beat.release_a.eq(ends_step & now.release_a), beat.release_b.eq(ends_step & now.release_b),
                beat.final.eq(ends_step & now.final)]
            if parts:
                m.d.sync += beat.part.eq(group["m"][:parts])
            if row_bits:
                m.d.sync += [beat.initial_row.eq(number[:row_bits]), beat.common.eq(now.common)]

    def _opens(self, now, opening, number):
        """Whether this is the first round of a tile's sums."""
        return (number == 0) & (opening | ~now.initial)
