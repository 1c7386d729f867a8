"""Golden model of the loop nest of a matrix product: its requests and exact timing.

Mirrors :mod:`hdl.features.compute.loop_nest`.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sim.golden.features.compute.mac_array import SLOTS
from sim.golden.stream import Feed, Output

__all__ = ["ORDERS", "Beat", "Job", "LoopNest", "Outline", "Panel", "Step", "Tile", "Trace", "Work"]

#: Outer loops for each value of ``order``, innermost loop last.
ORDERS = ("mnk", "nmk", "kmn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Product of m by k and k by n. Tile factors are log2 values; ``order`` indexes :data:`ORDERS`."""

    m: int
    n: int
    k: int
    tile: int = 0
    row_tiles: int = 0
    column_tiles: int = 0
    rounds: int = 0
    order: int = 0
    resume: int = 0
    common: int = 0
    align_m: int = 0
    align_k: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """Panels that are loaded for a step of the outer loops."""

    m: int
    n: int
    k: int
    a: int
    b: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tile:
    """Announcement of a tile when work on it begins."""

    m: int
    n: int
    tile: int
    initial: int
    partial: int
    again: int
    opens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beat:
    """Beat: one cycle of the array. In an initial beat, ``a``, ``b``, ``row`` and ``part`` are meaningless."""

    a: int
    b: int
    row: int
    part: int
    initial: int
    initial_row: int
    common: int
    first: int
    last: int
    tile: int
    release_a: int
    release_b: int
    final: int


@dataclasses.dataclass(frozen=True)
class Step:
    """Step of the outer loops: the panels to load, and the beats of each tile with its announcement. Panels and
    announcements are None where the step has none."""

    panel: Panel | None
    tiles: list[tuple[Tile | None, list[Beat]]]


@dataclasses.dataclass(frozen=True)
class Work:
    """Work on a tile in one step: whether its sums begin or end in the step, and how many initial rounds and
    terms it has."""

    tile: Tile
    first: bool
    last: bool
    common: bool
    initial: int
    terms: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outline:
    """Step of the outer loops: position, panels to load and to release, and tiles."""

    m: int
    n: int
    k: int
    panel: Panel | None
    release_a: int
    release_b: int
    final: int
    tiles: list[Work]


@dataclasses.dataclass(frozen=True)
class Trace:
    """Handshakes of all streams and ``bad`` per cycle, and the index of the beat each output offers."""

    signals: dict[str, npt.NDArray[np.bool_]]
    offered: dict[str, npt.NDArray[np.int64]]
    beats: list[Beat]
    panels: list[Panel]
    tiles: list[Tile]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopNest:
    """Golden model of the loop nest of a matrix product."""

    #: Parameters of the gateware unit.
    rows: int
    lanes: int
    blocks: int = 128
    terms: int = 1

    #: Latency in cycles from accepting a job to ``bad``, and to offering its first step.
    CHECK = 3
    FIRST = 6
    #: Latency in cycles from the end of a step's offer to the offer of the next step.
    NEXT = 3
    #: Latency in cycles from a step, or from offering a tile, to offering the next tile.
    TILE = 3

    def strides(self, job: Job) -> dict[str, int]:
        """Size of a panel: number of rows, columns and terms."""
        return {"m": self.rows << job.tile + job.row_tiles,
                "n": (SLOTS >> job.tile) * self.lanes << job.column_tiles, "k": 1 << job.rounds}

    def legal(self, job: Job) -> bool:
        """Whether a job's panels fit, and its sizes and loop order are valid."""
        strides = self.strides(job)
        blocks = {name: max(1, stride // self.lanes) for name, stride in strides.items()}
        aligned = all(strides[name] % self.lanes == 0 or getattr(job, name) <= strides[name]
                      for name in "mk" if getattr(job, f"align_{name}"))
        return (aligned and min(job.m, job.n, job.k) > 0 and job.order < len(ORDERS)
                and (self._holds(job) or job.k <= strides["k"] or strides["k"] % self.terms == 0)
                and blocks["m"] * blocks["k"] <= self.blocks and blocks["n"] * blocks["k"] <= self.blocks)

    def block(self, group: int, term: int) -> int:
        """Address of the block for a group of rows or columns and a group of terms."""
        bits = self.blocks.bit_length() - 1
        return group | int(f"{term:0{bits}b}"[::-1], 2)

    def cycles(self, job: Job) -> int:
        """Number of beats of a job in closed form; equals the number of cycles if no stream stalls."""
        tiles = -(-job.m // (self.rows << job.tile)) * -(-job.n // (self.lanes * (SLOTS >> job.tile)))
        steps = 1 if self._holds(job) else -(-job.k // (1 << job.rounds))
        initial = self.rows * (steps - 1) + job.resume * (1 if job.common else self.rows)
        return SLOTS * tiles * (job.k + initial)

    @staticmethod
    def _holds(job: Job) -> bool:
        """Whether sums stay in the array from one panel to the next."""
        return job.row_tiles == job.column_tiles == 0 and ORDERS[job.order][-1] == "k"

    def outline(self, job: Job) -> Iterator[Outline]:
        """Yield the steps of a valid job, in order and without beats."""
        size, stride = {name: getattr(job, name) for name in "mnk"}, self.strides(job)
        outer, middle, inner = tuple(ORDERS[job.order])
        bases = [{outer: x, middle: y, inner: z} for x in range(0, size[outer], stride[outer])
                 for y in range(0, size[middle], stride[middle]) for z in range(0, size[inner], stride[inner])]
        for number, base in enumerate(bases):
            before = bases[number - 1] if number else None
            after = bases[number + 1] if number + 1 < len(bases) else None

            def differs(other: dict[str, int] | None, names: str, base: dict[str, int] = base) -> int:
                return int(other is None or any(other[name] != base[name] for name in names))

            loads = {"a": differs(before, "mk"), "b": differs(before, "nk")}
            yield Outline(
                **base, panel=Panel(**base, **loads) if any(loads.values()) else None,
                release_a=differs(after, "mk"), release_b=differs(after, "nk"), final=int(after is None),
                tiles=list(self._works(job, base)))

    def _works(self, job: Job, base: dict[str, int]) -> Iterator[Work]:
        """Yield the work on each tile of a step, in order."""
        stride, holds = self.strides(job), self._holds(job)
        terms = min(stride["k"], job.k - base["k"])
        begins, ends = base["k"] == 0, base["k"] + terms == job.k
        initial = (bool(job.resume) if begins else not holds)
        for m in range(base["m"], min(base["m"] + stride["m"], job.m), self.rows << job.tile):
            for n in range(base["n"], min(base["n"] + stride["n"], job.n), self.lanes * (SLOTS >> job.tile)):
                tile = Tile(m=m, n=n, tile=job.tile, initial=int(initial), partial=int(not ends and not holds),
                            again=int(not begins), opens=int((m, n) == (base["m"], base["n"])))
                common = bool(initial and begins and job.common)
                yield Work(tile, begins or not holds, ends or not holds, common,
                           initial * (1 if common else self.rows), terms)

    def steps(self, job: Job) -> Iterator[Step]:
        """Steps of a valid job, in order."""
        for step in self.outline(job):
            tiles: list[tuple[Tile | None, list[Beat]]] = []
            for number, work in enumerate(step.tiles):
                beats = list(self._beats(step, work, number == len(step.tiles) - 1))
                tiles.append((work.tile if work.first else None, beats))
            yield Step(step.panel, tiles)

    def _beats(self, step: Outline, work: Work, ending: bool) -> Iterator[Beat]:
        """Yield the beats of a tile; ``ending`` is true for the last tile of a step."""
        tile = work.tile
        rounds = [(True, row) for row in range(work.initial)] + [(False, term) for term in range(work.terms)]
        for index, (opening, count) in enumerate(rounds):
            closing = index == len(rounds) - 1
            for slot in range(SLOTS):
                row_group, column_group = divmod(slot, SLOTS >> tile.tile)
                row = tile.m - step.m + row_group * self.rows
                column = tile.n - step.n + column_group * self.lanes
                ends = int(ending and closing and slot == SLOTS - 1)
                yield Beat(
                    a=self.block(row // self.lanes, count // self.lanes),
                    b=self.block(column // self.lanes, count // self.lanes), row=count % self.lanes,
                    part=row % self.lanes // self.rows, initial=int(opening), initial_row=count % self.rows,
                    common=int(work.common), first=int(work.first and index == 0), last=int(work.last and closing),
                    tile=tile.tile, release_a=ends & step.release_a, release_b=ends & step.release_b,
                    final=ends & step.final)

    def trace(self, jobs: Sequence[Job], *, willing: npt.ArrayLike, ready: dict[str, npt.ArrayLike]) -> Trace:
        """Trace every cycle from reset. ``willing`` marks cycles when the source may start to offer its next job;
        ``ready`` marks cycles when the sinks of ``panels``, ``tiles`` and ``o`` are ready."""
        feed = Feed(len(jobs), willing)
        outputs = {name: Output(ready[name]) for name in ("panels", "tiles", "o")}
        payloads: dict[str, list] = {"panels": [], "tiles": [], "o": []}
        bad = np.zeros(feed.end, np.bool_)
        # Earliest cycles for accepting a job, and for offering a step's beats, the next step and its tiles.
        idle, free, following, announced = 0, 0, 0, 0
        for job in jobs:
            accepted = feed.accept(idle)
            if accepted >= feed.end:
                break
            if not self.legal(job):
                bad[accepted + self.CHECK:accepted + self.CHECK + 1] = True
                idle = accepted + self.CHECK + 1
                continue
            offer = accepted + self.FIRST
            for step in self.steps(job):
                done = max(offer, following)
                following = latest = max(done + 1, free)
                if step.panel is not None:
                    # The panel register is always empty when a step offers its panels.
                    outputs["panels"].load(offer - 1)
                    payloads["panels"].append(step.panel)
                    done = max(done, outputs["panels"].departed)
                tiles = [tile for tile, _ in step.tiles if tile is not None]
                if tiles:
                    announced = max(offer, announced)
                    done = max(done, announced)
                    for _ in tiles:
                        announced = outputs["tiles"].load(announced + self.TILE)
                    announced += 1
                    payloads["tiles"] += tiles
                for _, beats in step.tiles:
                    for beat in beats:
                        latest = outputs["o"].load(max(latest + 1, outputs["o"].departed))
                        payloads["o"].append(beat)
                free = latest
                offer = done + self.NEXT
            idle = max(done + 1, following) + 1
        else:
            feed.accept(idle)
        signals = {"job__valid": feed.valid, "job__ready": feed.ready, "bad": bad}
        signals |= {f"{name}__valid": output.offered >= 0 for name, output in outputs.items()}
        return Trace(signals, {name: output.offered for name, output in outputs.items()}, payloads["o"],
                     payloads["panels"], payloads["tiles"])
