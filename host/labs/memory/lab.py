"""The lab `gradring lab memory`: results of the memory planner and its timeline, computed and stored in parts.

Cycles are modelled (:mod:`host.features.compute.memory.chain`, :mod:`host.features.compute.memory.steps`), except
that the parts ``nodes`` and ``text nodes`` measure them on a simulated node.
"""

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from host.columns import Column, Table
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.features.compute.memory.chain import EXHAUSTIVE, Chain, decide, exhaustive, greedy, layers_chain
from host.features.compute.memory.checker import dead_reads, injected, overlaps, random_chain, random_profile
from host.features.compute.memory.plan import Profile, make_plan, planned, rooms_of
from host.features.compute.memory.steps import perceptron_profile
from host.features.compute.text_lists import compile_text, engine_of
from host.features.compute.text_steps import CONFIG, text_chain, text_program
from host.features.far.steps import FarStep, far_steps, far_text_steps
from host.labs.kit import BUILD, Results
from host.models.layer_shapes import layers_of
from host.models.text import Batch
from host.models.transformer import Transformer
from host.options import Option, command
from host.output import write_json
from sim import json_files
from sim.arithmetic.functions import column_sums

__all__ = ["CHAINS", "INJECTED", "PARTS", "PASSES", "Parts", "bits", "chains", "checks", "differentiated", "far",
           "memory_lab", "nodes", "programs", "text_nodes"]

#: Number of overlaps to inject into plans, number of passes with correct plans, and number of random chains.
INJECTED, PASSES, CHAINS = 100, 1000, 250
_CHAINS = 50  # number of random chains in each part of the results
#: Minimum fraction of chains for which greedy search is optimal, and its maximum slowdown for the other chains.
_EQUAL, _MOST = 0.95, 1.06
#: Memory in words for the text model's buffers, and minimum saving of its lists by the ``strict`` planning method.
_ACTIVATIONS, _STRICT = 8192, 0.45
#: Layer widths of perceptrons, with batches of 32 examples and 4 x 4 arrays.
_WIDTHS = ((64, 64, 10), (64, *[64] * 9, 10), (64, 128, 96, 48, 10))
_EXAMPLES, _ARRAY = 32, Array(rows=4, lanes=4)
#: Variants of the text model's program and their options.
_TEXT: Mapping[str, dict[str, Any]] = {
    "text, as it is": {}, "text, normals scaled again": {"scaled_again": True}, "text, in place": {"in_place": True},
    "text, both": {"scaled_again": True, "in_place": True}}
#: Instruction lists of the text model, and whether the backward pass in each scales normalised rows again.
_LISTS = {"lists of text": False, "lists of text, normals scaled again": True}
#: Cases to model: chain, memory budget as a fraction of the saved words, and far-memory rate in words per cycle.
_FAR = (("text", 0.6, 1 / 4), ("text", 0.75, 1 / 8), ("layers", 0.5, 1 / 8), ("text", 0.6, 1 / 8),
        ("text", 0.5, 1 / 4), ("text", 0.5, 1 / 2), ("text", 0.6, 1 / 2), ("layers", 0.5, 1 / 2))
#: Memory budgets and far-memory rates for steps of the second perceptron on a simulated node.
_NODES = ((0.5, 1 / 16), (0.5, 1 / 8), (0.5, 1 / 2))
#: Memory budgets and far-memory rates for the text model on a simulated node.
_TEXT_NODES = ((0.6, 1 / 4), (0.75, 1 / 8), (0.5, 1 / 4), (0.5, 1 / 2), (0.6, 1 / 2))
#: Maximum relative deviation of a node's cycles from the timeline, and maximum relative difference between the cycles
#: of steps that should take the same time.
_NEAR, _EVEN = 0.03, 0.001


def _name(widths: tuple[int, ...]) -> str:
    inner = "64x9" if widths[1:-1] == (64,) * 9 else "-".join(map(str, widths[1:-1]))
    return f"{widths[0]}-{inner}-{widths[-1]}"


def _row(name: str, profile: Profile) -> dict[str, Any]:
    """Return the words a program needs with each planning method, and the methods that fail a check."""
    places = {method: dict(zip(profile.words, bases, strict=True))
              for method, bases in planned(profile.lifetimes).items()}
    words = {method: max(base + profile.words[name] for name, base in bases.items())
             for method, bases in places.items()}
    wrong = [method for method, bases in places.items() if overlaps(profile, bases) or dead_reads(profile, bases)]
    return {"program": name, "buffers": len(profile.words), "naive": profile.naive, "live": profile.live,
            "words": words, "digest": profile.digest, "wrong": wrong}


def programs() -> list[dict[str, Any]]:
    """Return the words that plans need for lists and step programs of perceptrons and of the text model."""
    profiles: dict[str, Profile] = {}
    for widths in _WIDTHS:
        lists = compile_lists(layers_of(widths), array=_ARRAY, examples=_EXAMPLES, words=1 << 20)
        profiles[f"lists of {_name(widths)}"] = lists.programs[0].profile(rooms_of(lists.plan), _ARRAY.engine())
    for name, again in _LISTS.items():
        text = compile_text(CONFIG, array=_ARRAY, sequences=1, words=1 << 20, scaled_again=again)
        profiles[name] = text.programs[0].profile(rooms_of(text.plan), engine_of(_ARRAY))
    profiles |= {f"{_name(widths)}, softmax apart": perceptron_profile(widths, _EXAMPLES) for widths in _WIDTHS}
    profiles |= {name: text_program(**options).profile for name, options in _TEXT.items()}
    return [_row(name, profile) for name, profile in profiles.items()]


def checks() -> dict[str, int]:
    """Count overlaps injected into random plans, overlaps that each of two checks detects, and false alarms.

    A pass executes a random program with a correct plan.
    """
    generator = np.random.default_rng(0)
    count = {"injected": 0, "overlaps": 0, "dead_reads": 0, "passes": 0, "alarms": 0}
    while count["injected"] < INJECTED or count["passes"] < PASSES:
        profile = random_profile(generator)
        plan = make_plan(profile, rounds=20)
        if count["passes"] < PASSES:
            count["passes"] += 1
            count["alarms"] += bool(overlaps(profile, plan.places) or dead_reads(profile, plan.places))
        wrong = injected(profile, plan.places, generator) if count["injected"] < INJECTED else None
        if wrong is not None:
            count["injected"] += 1
            count["overlaps"] += bool(overlaps(profile, wrong))
            count["dead_reads"] += bool(dead_reads(profile, wrong))
    return count


def differentiated(model: Transformer, length: int, **options: bool) -> tuple[bool, int]:
    """Differentiate a random sequence in planned memory; return whether the result is bit exact, and the words used.

    The sequence has ``length`` characters, followed by padding. Options are passed to
    :func:`~host.features.compute.text_steps.text_program`.
    """
    generator, context = np.random.default_rng(length), model.config.context
    tokens, labels = generator.integers(0, model.config.characters, (2, context))
    tokens[length:] = labels[length:] = 0
    loss, expected = model.differentiate(Batch(tokens[None], labels[None], np.array([length])))
    gradient = np.full(model.size, np.nan, np.float32)
    program = text_program(model.config, parameters=model.parameters, gradient=gradient, length=length, **options)
    plan = make_plan(program.profile)
    taken = program.run(plan.places, {"tokens": tokens[:, None], "labels": labels[:, None]})
    same = (float(column_sums(taken["losses"][:length])[0]) == loss
            and np.array_equal(gradient.view(np.uint32), expected.view(np.uint32)))
    return same, plan.peak


def bits() -> list[dict[str, Any]]:
    """Run the text model's programs in planned memory, and count the sequence lengths with bit-exact results."""
    model = Transformer(CONFIG)
    model.initialize(0)
    rows = []
    for name, options in _TEXT.items():
        results = [differentiated(model, length, **options) for length in range(1, CONFIG.context + 1)]
        rows.append({"program": name, "lengths": len(results), "same": sum(same for same, _ in results),
                     "words": results[-1][1]})
    return rows


def far() -> list[dict[str, Any]]:
    """Model the cycles of steps with far memory, relative to a step that keeps all activation maps."""
    chains: dict[str, Chain] = {"text": text_chain(), "layers": layers_chain(9, width=64, examples=32)}
    rows: list[dict[str, Any]] = []
    for name, share, rate in _FAR:
        chain = chains[name]
        row: dict[str, Any] = {"chain": chain.name, "share": share, "budget": int(share * chain.words), "rate": rate,
                               "cycles": chain.cycles}
        for kind in ("swap", "recompute", "mixed"):
            plan = decide(chain, budget=row["budget"], rate=rate, kind=kind)
            row[kind] = None if plan is None else {
                "cycles": plan.run.cycles, "factor": plan.run.cycles / chain.cycles, "peak": plan.run.peak,
                "far_words": plan.run.far_words, "multiplications": plan.run.multiplications,
                "policies": [policy.name.lower() for policy in plan.policies]}
        rows.append(row)
    return rows


def nodes() -> list[dict[str, Any]]:
    """Run a perceptron on a simulated node with far memory, under each policy."""
    return [row for share, rate in _NODES for row in _steps(
        _name(_WIDTHS[1]), share, rate, far_steps(_WIDTHS[1], examples=_EXAMPLES, share=share, rate=rate))]


def text_nodes() -> list[dict[str, Any]]:
    """Run a sequence of the text model on a simulated node with far memory, under each policy."""
    return [row for share, rate in _TEXT_NODES
            for row in _steps("text", share, rate, far_text_steps(share=share, rate=rate))]


def _steps(chain: str, share: float, rate: float, steps: list[FarStep]) -> list[dict[str, Any]]:
    """Return a row for each step, with its cycles relative to ``steps[0]``, which keeps all activation maps."""
    return [{"chain": chain, "share": share, "rate": rate, **dataclasses.asdict(step),
             "policies": [policy.name.lower() for policy in step.policies], "factor": step.cycles / steps[0].cycles}
            for step in steps]


def chains(seed: int) -> list[float]:
    """Return the ratio of a greedy plan's cycles to an exhaustive plan's cycles, for random feasible chains."""
    generator = np.random.default_rng(seed)
    ratios: list[float] = []
    while len(ratios) < _CHAINS:
        chain, budget, rate = random_chain(generator, most=EXHAUSTIVE)
        best, greedy_plan = (search(chain, budget=budget, rate=rate) for search in (exhaustive, greedy))
        if best is not None:
            ratios.append(greedy_plan.run.cycles / best.run.cycles if greedy_plan is not None else float("inf"))
    return ratios


#: Functions that compute the parts of the results, keyed by the name of the part.
PARTS: Mapping[str, Callable[[], Any]] = {
    "programs": programs, "checks": checks, "bits": bits, "far": far, "nodes": nodes,
    "text nodes": text_nodes,
    **{f"chains {seed}": functools.partial(chains, seed) for seed in range(CHAINS // _CHAINS)}}


def _sources() -> list[Path]:
    """Modules on which the stored results depend."""
    folder = Path(__file__).parents[2]
    return [Path(__file__), *(path for name in ("features/compute", "features/far", "models")
                              for path in sorted((folder / name).rglob("*.py")))]


def _digest() -> str:
    """Return the SHA-256 of the modules that the stored results depend on."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _sources())).hexdigest()


class Parts:
    """Results in parts, stored in a JSON file. A file that is damaged or from other sources is ignored."""

    def __init__(self, path: Path):
        self._path = path
        self._source = _digest()
        self.parts: dict[str, Any] = {}  # results of the parts that have been computed
        with contextlib.suppress(FileNotFoundError, ValueError):
            kept = json_files.read_sealed(path)
            if kept["source"] == self._source:
                self.parts = kept["parts"]

    def complete(self) -> Iterator[str]:
        """Compute the missing parts and write the file after each; yield a part's name before it is computed."""
        for name, part in PARTS.items():
            if name not in self.parts:
                yield name
                self.parts[name] = part()
                write_json(self._path, json_files.sealed({"source": self._source, "parts": self.parts}))

    @property
    def ratios(self) -> list[float]:
        """Cycles of each greedy plan, divided by the cycles of the exhaustive plan for the same chain."""
        return [ratio for name, part in self.parts.items() if name.startswith("chains") for ratio in part]

    def failures(self) -> list[str]:
        """Return the requirements that the results do not meet."""
        checks, ratios = self.parts["checks"], self.ratios
        rows = {row["program"]: row for row in self.parts["programs"]}
        again = [rows[name] for name in ("text, normals scaled again", "lists of text, normals scaled again")]
        lists, steps = rows["lists of text"], self.parts["nodes"] + self.parts["text nodes"]
        cycles = {(row["chain"], row["share"], row["rate"], row["kind"]): row["cycles"] for row in steps}
        statements = {
            "a plan with an overlap": any(row["wrong"] for row in self.parts["programs"]),
            "a search above the words that are alive": any(
                row["words"]["search"] != row["live"] for row in self.parts["programs"]),
            "a text program above 8,192 words": any(row["words"]["shared"] > _ACTIVATIONS for row in again),
            "lists of text that share less than is alive": again[1]["words"]["shared"] != again[1]["live"],
            "lists of text of which the strict rule saves too little": (
                lists["words"]["strict"] > (1 - _STRICT) * lists["naive"]),
            "an overlap that was not found": min(checks["overlaps"], checks["dead_reads"]) < checks["injected"],
            "a false alarm": checks["alarms"],
            "other bits than the host's": any(row["same"] < row["lengths"] for row in self.parts["bits"]),
            "a mixed plan that is slower than another": any(
                row["mixed"]["cycles"] > min(row[kind]["cycles"] for kind in ("swap", "recompute") if row[kind])
                for row in self.parts["far"]),
            "a plan above its budget": any(row[kind]["peak"] > row["budget"] for row in self.parts["far"]
                                           for kind in ("swap", "recompute", "mixed") if row[kind]),
            "a step on a node with other bits than the host's": any(not row["same"] for row in steps),
            "a step on a node that is not its plan": any(
                row["far_words"] != row["planned"] or row["peak"] > row["budget"]
                or abs(row["cycles"] - row["timeline"]) > _NEAR * row["timeline"] for row in steps),
            "a mixed step on a node that is slower than another": any(
                kind == "mixed" and count > (1 + _EVEN) * min(
                    cycles.get((*which, other), count) for other in ("swap", "recompute"))
                for (*which, kind), count in cycles.items()),
            "greedy plans that are not those of an exhaustive search": (
                sum(ratio == 1 for ratio in ratios) < _EQUAL * len(ratios) or max(ratios) > _MOST)}
        return [name for name, failed in statements.items() if failed]

    def tables(self) -> list[Table]:
        """Return three tables: words of programs, modelled plans with far memory, and steps on a simulated node."""
        parts = self.parts
        return [
            Table("words of the activation memory", _PROGRAM, parts["programs"]),
            Table("modelled cycles, divided by those of a step that keeps all maps; what follows mixed belongs to it",
                  _PLAN, parts["far"]),
            *(Table(f"steps on a simulated node, and the timelines of their plans: "
                    f"{', '.join(dict.fromkeys(row['chain'] for row in parts[part]))}", _STEP, parts[part])
              for part in ("nodes", "text nodes"))]

    def lines(self) -> list[str]:
        """Describe the results that are not in the tables, one per line."""
        checks, ratios = self.parts["checks"], self.ratios
        return [
            f"overlaps: of {checks['injected']} put into plans, {checks['overlaps']} found by lifetimes and "
            f"{checks['dead_reads']} by owners of words; {checks['alarms']} alarms in {checks['passes']:,} passes of "
            f"right plans",
            *(f"{row['program']}: in {row['words']:,} words, {row['same']} of {row['lengths']} lengths with the "
              f"host's bits" for row in self.parts["bits"]),
            f"greedy plans of {len(ratios)} random chains: {sum(ratio == 1 for ratio in ratios)} are as fast as the "
            f"best, the slowest takes {max(ratios):.3f} of its cycles",
            "cycles, products and passes of chains, and far memory: modelled; of the steps on a simulated node, only "
            "far memory"]


def _words(method: str) -> Column:
    """Return a column with the words that a planning method needs, and the difference from naive plans in percent."""
    return Column(method, format=str, of=lambda row: (
        f"{row['words'][method]:,} ({row['words'][method] / row['naive'] - 1:+.1%})"))


def _factor(kind: str) -> Column:
    """Return the column of a plan's cycles, relative to a step that keeps all activation maps."""
    return Column(kind, format=str, of=lambda row: f"{row[kind]['factor']:.3f}" if row[kind] else "no room")


def _policies(policies: Sequence[str]) -> str:
    """Abbreviate the policy of each activation map to the initial of keep, swap or recompute."""
    return "".join(policy[0] for policy in policies)


_RATE = Column("rate", format=lambda rate: f"1/{1 / rate:.0f}")
_PROGRAM = (
    Column("program"), Column("naive", format=","), _words("strict"),
    Column("shared", format=",", of=lambda row: row["words"]["shared"]),
    Column("lowest_fit", format=",", of=lambda row: min(
        words for method, words in row["words"].items() if method.startswith("lowest fit"))),
    _words("search"), Column("live", format=","))
_PLAN = (
    Column("chain"), Column("budget", format=str, of=lambda row: f"{row['budget']:,} ({row['share']:.0%})"), _RATE,
    *map(_factor, ("swap", "recompute", "mixed")),
    Column("plan", of=lambda row: _policies(row["mixed"]["policies"])),
    Column("moved_words", format=",", of=lambda row: row["mixed"]["far_words"]),
    Column("more_products", format=",", of=lambda row: row["mixed"]["multiplications"]))
_STEP = (
    Column("kind", title="plan"), Column("policies", format=_policies, title="maps"),
    Column("budget", format=","), _RATE, Column("cycles", format=","),
    Column("factor", format=".3f", title="of keep"),
    Column("of_timeline", format=".4f", of=lambda row: row["cycles"] / row["timeline"]),
    Column("far_words", format=",", title="moved words"),
    Column("multiplications", format=",", title="more products"),
    Column("same", format=lambda same: "right" if same else "WRONG", title="bits"))


@command
def memory_lab(
    *, output: Annotated[Path, Option("Folder for memory.json.", shown_default="build/memory")] = BUILD / "memory",
) -> None:
    """Plan the memory of programs: which activations to keep, to move or to recompute."""
    parts = Parts(output / "memory.json")
    results = Results(output, "memory.json", keep=("memory.json",) if parts.parts else ())
    with results.progress() as progress:
        for name in parts.complete():
            progress.stage(f"memory: {name}")
    results.show(*parts.tables(), *parts.lines())
    results.show_paths()
    results.end(f"memory: {failure}" for failure in parts.failures())
