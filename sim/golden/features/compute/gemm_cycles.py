"""Golden model of the cycles that a matrix product takes with its operands in memory.

Mirrors :mod:`hdl.features.compute.gemm`: every queue, stage and plan is modelled, but no data are moved.
"""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

from sim.golden.features.compute.gemm import ONES, GemmJob
from sim.golden.features.compute.loop_nest import LoopNest, Outline, Tile
from sim.golden.features.compute.mac_array import SLOTS, MacUnits
from sim.golden.features.compute.memory_pace import READ, Memory, RowFetch
from sim.golden.lazy_table import OnDemand
from sim.golden.operands import FP32, operands_of

__all__ = ["GemmCycles"]

#: Array model for operands in block formats.
_BLOCK_UNITS: OnDemand[Any] = OnDemand(
    "sim.golden.features.block_operands.block_array:BlockUnits", lambda units: units)

#: Beat flags for the units between the loop nest and the array.
_INITIAL, _LAST, _RELEASE_A, _RELEASE_B = (1 << bit for bit in range(4))
#: Flags of access sequence steps (in addition to READ) and of operand rows.
_PARTIAL, _FINAL = 2, 4
_SIDE, _END = 2, 4
#: Default memory pacing, without wait cycles.
_QUIET = Memory()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmCycles:
    """Timing model of the matrix product unit."""

    #: Parameters of the gateware unit.
    rows: int
    lanes: int
    blocks: int = 128
    #: Latency in cycles from elements to their product in the array, and to the product with a scale.
    product: int = 6
    scaling: int = 6
    scale_mask: bool = False  # whether results pass through the scale-and-mask unit
    operands: str = FP32  # operand format; ``product`` is unused for block formats
    memory: Memory = _QUIET

    #: Latency in cycles from accepting a job to raising ``bad``.
    CHECKED = 4

    @property
    def loops(self) -> LoopNest:
        """Model of the unit's loop nest."""
        return LoopNest(rows=self.rows, lanes=self.lanes, blocks=self.blocks, terms=operands_of(self.operands).terms)

    def units(self) -> Any:
        """Model of the unit's array, in its idle state."""
        form = operands_of(self.operands)
        if form.block is None:
            return MacUnits(self.rows, self.product)
        return _BLOCK_UNITS.load()(self.rows, self.lanes, form.terms, form.delay)

    def legal(self, job: GemmJob) -> bool:
        """Whether the panels of a job fit into the panel buffers and are aligned to memory rows."""
        return self.loops.legal(job.loops)

    def cycles(self, job: GemmJob) -> int:
        """Latency in cycles from the acceptance of a job to ``done``, or to ``bad``."""
        if not self.legal(job):
            return self.CHECKED
        run = _Run(self, job)
        most = 10_000 + 100 * self.loops.cycles(job.loops)
        for cycle in range(most):
            if run.step(cycle):
                return cycle + 1
        raise RuntimeError(f"Product must end within {most} cycles, not later: {job!r}")

    def loads(self, job: GemmJob, step: Outline) -> list[list[int]]:
        """Flags of the A and B rows that a step loads: whether each is read, and whether it is the last row."""
        stride, size = self.loops.strides(job.loops), {"m": job.m, "n": job.n, "k": job.k}
        extent = {name: min(stride[name], size[name] - getattr(step, name)) for name in "mnk"}
        result: list[list[int]] = [[], []]
        for side, (name, along_k, matrix) in enumerate((("m", not job.transpose_a, job.a),
                                                        ("n", job.transpose_b, job.b))):
            if step.panel is not None and (step.panel.a, step.panel.b)[side]:
                lines, length = (extent[name], extent["k"]) if along_k else (extent["k"], extent[name])
                count = lines * -(-length // self.lanes)
                result[side] = [_SIDE * side + READ * (matrix.place != ONES)] * count
                result[side][-1] |= _END
        return result


class _Run:
    """State of the unit during one product, starting when the job is accepted."""

    #: Queue depths: beats before and after the panels, tiles to drain, requests, gate rows, operand rows.
    SKID, MARKS, TILES, REQUESTS, GATES, ROWS = 2, 17, 17, 33, 33, 17
    UNFINISHED = 31
    #: Maximum number of result rows in flight in ``scale_mask``.
    SCALED = 17

    def __init__(self, model: GemmCycles, job: GemmJob) -> None:
        self.model, self.job, self.memory = model, job, model.memory
        self.outlines = model.loops.outline(job.loops)
        self.initial, self.gate, self.operands = RowFetch(self.ROWS), RowFetch(self.GATES), RowFetch(self.ROWS)
        # State of the planner for steps, of the tile announcements and of the beats.
        self.outline: Outline | None = None
        self.offered, self.wants_beats, self.wants_tiles, self.wants_panels = 0, False, False, False
        self.next_outline(LoopNest.FIRST)
        self.coming: deque[Tile] = deque()
        self.tiles_from, self.tile = 0, None  # type: int, Tile | None
        self.ahead: Outline | None = None  # the next step
        self.beats: Iterator[int] = iter(())
        self.following: int | None = None
        self.beat: int | None = None
        self.skid: deque[int] = deque()
        # State of the panel buffers and of the array.
        self.full, self.filling, self.reading = [[False] * 2, [False] * 2], [0, 0], [0, 0]
        self.filled: deque[tuple[int, int, int]] = deque()
        self.pipe, self.marks = [False] * 4, deque()  # type: list[bool], deque[int]
        self.units = model.units()
        self.leaving = self.units.leaving
        # Result rows being scaled: the cycle when each can be taken, and whether it is the last of its tile.
        self.scaled: deque[tuple[int, int]] = deque()
        # Progress of the planners for operand loads, initial values and the drain.
        self.side, self.phase = 0, 0
        self.initial_phase, self.initial_pass = 0, 0
        self.unfinished, self.drained, self.count, self.before = 0, 0, 0, 0
        self.tiles: deque[Tile] = deque()
        self.drain_phase, self.walk_offer, self.gate_offer = 0, None, None  # type: int, Tile | None, Tile | None
        self.walk: deque[int] = deque()
        # State of the memory ports.
        self.written, self.ending, self.uncommitted, self.ended = False, 0, 0, False
        self.requested: int | None = None
        self.owners = 0
        self.due: deque[tuple[int, int]] = deque()

    def next_outline(self, cycle: int) -> None:
        """Offer the next step, starting at the given cycle."""
        self.outline = outline = next(self.outlines, None)
        if outline is not None:
            self.offered, self.wants_beats = cycle, True
            self.wants_panels, self.wants_tiles = outline.panel is not None, outline.tiles[0].first

    @staticmethod
    def beats_of(outline: Outline) -> Iterator[int]:
        """Yield the beats of a step, each as a set of flags."""
        for number, work in enumerate(outline.tiles):
            ending = number == len(outline.tiles) - 1
            for count in range(work.initial + work.terms):
                closing = count == work.initial + work.terms - 1
                code = _INITIAL * (count < work.initial) + _LAST * (closing and work.last)
                yield from [code] * (SLOTS - 1)
                if closing and ending:
                    code |= _RELEASE_A * outline.release_a | _RELEASE_B * outline.release_b
                yield code

    def step(self, cycle: int) -> bool:
        """Simulate one cycle; return whether ``done`` is high in the next cycle."""
        settled = self.uncommitted == 0
        if self.ended and settled:
            return True
        self.uncommitted -= not settled and self.memory.commit(cycle)
        finished = settled and self.drained > 0
        self.drained -= finished
        # In the next cycle, a removed item's entry is free again, and a new item becomes visible. Sinks are therefore
        # simulated before sources, and levels are sampled at the start of the cycle.
        fetches = (self.initial, self.gate, self.operands)
        for fetch in fetches:
            fetch.level = len(fetch.tags)
        rooms = len(self.marks) < self.MARKS, len(self.tiles) < self.TILES
        leaves = self.leaving[0] if self.leaving else None
        take = self.scale(cycle) if self.model.scale_mask else self.drain(cycle, leaves)
        reads = self.array(cycle, take)
        self.fill(cycle)
        self.join(cycle, reads, rooms[0])
        self.request(cycle, fetches)
        self.plan_operands(cycle)
        tile = self.plan_initial() if rooms[1] else None
        self.unfinished -= finished
        self.plan_drain()
        self.announce(cycle, tile)
        if cycle >= self.offered and not (self.wants_beats or self.wants_tiles or self.wants_panels):
            self.next_outline(cycle + LoopNest.NEXT)
        return False

    def scale(self, cycle: int) -> bool:
        """Offer a scaled result row to the drain; return whether a row is taken from the array."""
        take = bool(self.leaving) and len(self.scaled) < self.SCALED
        offer = self.scaled[0][1] if self.scaled and self.scaled[0][0] <= cycle else None
        if self.drain(cycle, offer):
            self.scaled.popleft()
        if take:
            self.scaled.append((cycle + self.model.scaling + 2, self.leaving[0]))
        return take

    def drain(self, cycle: int, offer: int | None) -> bool:
        """Write a result row (the last of its tile if ``offer`` is 1); return whether it is taken."""
        accepts = self.memory.write(cycle)
        self.uncommitted += self.written and accepts
        if self.written and not accepts:
            return False
        if self.ending:
            self.drained += 1
            self.ended = self.ending > 1
        step = self.walk[0] if self.walk else 0
        gated = self.job.gated and not step & _PARTIAL
        take = offer is not None and bool(self.walk) and (not gated or self.gate.offers())
        self.written, self.ending = take and bool(step & READ), 0
        if take:
            self.walk.popleft()
            if gated:
                self.gate.take()
            if offer:
                self.ending = 2 if step & _FINAL else 1
        return take

    def array(self, cycle: int, take: bool) -> bool:
        """Move results, sums and operands; return whether the panel stages move."""
        ready = self.units.step(cycle, take)
        mark = self.marks[0] if self.marks else 0
        initial = mark & _INITIAL != 0
        moves = bool(self.marks) and ready and (self.initial.offers() if initial else self.pipe[3])
        if moves:
            self.marks.popleft()
            self.units.accept(initial=initial, last=mark & _LAST != 0)
            if initial:
                self.initial.take()
        return (moves and not initial) or not self.pipe[3]

    def fill(self, cycle: int) -> None:
        """Store an operand row in its panel."""
        if self.filled and self.filled[0][0] <= cycle:
            _, side, half = self.filled.popleft()
            self.full[side][half] = True
        if self.operands.offers():
            side = int(self.operands.tags[0] & _SIDE != 0)
            if not self.full[side][self.filling[side]] and self.operands.take() & _END:
                self.filled.append((cycle + 2, side, self.filling[side]))
                self.filling[side] ^= 1

    def join(self, cycle: int, reads: bool, room: bool) -> None:
        """Pass a beat to the panels and the mark queue, and advance to the next beat."""
        level = len(self.skid)
        beat = self.skid[0] if self.skid else None
        initial = beat is not None and beat & _INITIAL != 0
        joins = beat is not None and room and (initial or (
            reads and all(full[half] for full, half in zip(self.full, self.reading, strict=True))))
        if reads:
            self.pipe = [joins and not initial, *self.pipe[:3]]
        if joins and beat is not None:
            self.marks.append(self.skid.popleft())
            for side, mark in enumerate((_RELEASE_A, _RELEASE_B)):
                if beat & mark:
                    self.full[side][self.reading[side]] = False
                    self.reading[side] ^= 1
        ended = self.following is None
        ahead = self.ahead
        if self.beat is None or level < self.SKID:
            if self.beat is not None:
                self.skid.append(self.beat)
            self.beat = self.following
            if not ended:
                self.following = next(self.beats, None)
                ended = self.following is None
        if ended and ahead is not None:
            self.beats, self.ahead = self.beats_of(ahead), None
            self.following = next(self.beats)
        if self.wants_beats and cycle >= self.offered and self.ahead is None:
            self.wants_beats, self.ahead = False, self.outline

    def request(self, cycle: int, fetches: tuple[RowFetch, ...]) -> None:
        """Accept a response from the memory, and request a row."""
        accepts = self.memory.request(cycle)
        free = (self.requested is None or accepts) and self.owners < self.REQUESTS
        if self.due and self.due[0][0] <= cycle and self.memory.response(cycle):
            _, owner = self.due.popleft()
            fetches[owner].answers += 1
            self.owners -= 1
        if self.requested is not None and accepts:
            self.due.append((cycle + self.memory.latency, self.requested))
            self.requested = None
        for number, fetch in enumerate(fetches):
            wants = fetch.requests()
            granted = wants and free
            free = free and not wants
            if fetch.moves(granted):
                fetch.tags.append(fetch.steps.popleft())
            if granted:
                self.requested = number
                self.owners += 1

    def plan_operands(self, cycle: int) -> None:
        """Plan the panel loads of a step in stages: choose a panel, multiply, add, and offer the panel's rows."""
        outline = self.outline
        if not self.wants_panels or cycle < self.offered or outline is None or outline.panel is None:
            return
        chosen = (outline.panel.a, outline.panel.b)
        if self.phase == 0 and not chosen[self.side]:
            self.side = 1
        elif self.phase < 3:
            self.phase += 1
        elif not self.operands.steps:
            self.operands.steps.extend(self.model.loads(self.job, outline)[self.side])
            self.wants_panels = not self.side and bool(chosen[1])
            self.side, self.phase = int(self.wants_panels), 0

    def plan_initial(self) -> Tile | None:
        """Plan the initial values of a tile, one row of units at a time; return the tile once it is accepted."""
        tile, job = self.tile, self.job
        if tile is None:
            return None
        if self.initial_phase == 0:
            most = self.count if tile.opens else self.before
            if self.unfinished == self.UNFINISHED or (tile.again and self.unfinished >= most):
                return None
            if tile.initial:
                self.initial_phase = 1
                return None
        elif self.initial_phase == 1:
            self.initial_phase = 2
            return None
        elif self.initial.steps:
            return None
        else:
            common = not tile.again and job.start.stride == 0
            rows = self.model.rows
            for line in range(1 << tile.tile):
                inside = common or tile.m + line * rows + self.initial_pass < job.m
                self.initial.steps.extend(
                    int(inside and tile.n + group * self.model.lanes < job.n) for group in range(SLOTS >> tile.tile))
            self.initial_pass += 1
            if not common and self.initial_pass < rows:
                return None
            self.initial_phase = self.initial_pass = 0
        self.unfinished += 1
        if tile.opens:
            self.before = self.count
        self.count = 1 if tile.opens else min(self.count + 1, self.UNFINISHED)
        return tile

    def plan_drain(self) -> None:
        """Plan the drain of a tile in stages: multiply, add, and offer the address sequences for C and the gate."""
        free = self.walk_offer is None and self.gate_offer is None
        if self.walk_offer is not None and not self.walk:
            self.walk.extend(self.results(self.walk_offer))
            self.walk_offer = None
        if self.gate_offer is not None and not self.gate.steps:
            self.gate.steps.extend(step & READ for step in self.results(self.gate_offer))
            self.gate_offer = None
        if not self.drain_phase:
            self.drain_phase = int(bool(self.tiles))
        elif free:
            tile = self.tiles.popleft()
            self.walk_offer, self.drain_phase = tile, 0
            if self.job.gated and not tile.partial:
                self.gate_offer = tile

    def results(self, tile: Tile) -> Iterator[int]:
        """Flags of the result rows of a tile."""
        job, rows, lanes = self.job, self.model.rows << tile.tile, self.model.lanes
        groups = SLOTS >> tile.tile
        final = tile.m + rows >= job.m and tile.n + groups * lanes >= job.n and not tile.partial
        for line in range(rows):
            for group in range(groups):
                inside = tile.m + line < job.m and tile.n + group * lanes < job.n
                yield READ * inside | _PARTIAL * tile.partial | _FINAL * final

    def announce(self, cycle: int, taken: Tile | None) -> None:
        """Announce the tiles of a step, one at a time."""
        idle = not self.coming
        if taken is not None:
            self.tiles.append(taken)
            self.tile = None
        if self.coming and cycle >= self.tiles_from and self.tile is None:
            self.tile = self.coming.popleft()
            self.tiles_from = cycle + LoopNest.TILE
        if idle and self.wants_tiles and cycle >= self.offered and self.outline is not None:
            self.wants_tiles = False
            self.coming.extend(work.tile for work in self.outline.tiles)
            self.tiles_from = cycle + LoopNest.TILE
