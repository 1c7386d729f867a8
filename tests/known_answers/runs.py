"""Short command lines, and how to read the answer of each."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from host.training import checkpoint

__all__ = ["DDP", "RUNS", "answer", "command"]

Answer = dict[str, Any]

#: Counts of a training step, which do not depend on the machine.
_COUNTS = ("cycles", "bound", "scatter_cycles", "words_sent", "scatter_words", "weight_words", "codebook_words",
           "sparsify_cycles", "elements_masked", "compute_cycles", "communicate_cycles", "modelled_cycles",
           "link_restarts", "words_repeated", "nodes")

#: Settings of a training run that its stored answer includes. None of them depends on the time or the machine.
_SETTINGS = ("optimizer", "learning_rate", "batch", "hidden", "overlap", "compute", "tiling")


def _digest(*arrays: Any) -> str:
    """SHA-256 of the bytes of all arrays, one after another."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:32]


def _report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def _content(folder: Path) -> Any:
    return checkpoint.peek(folder / checkpoint.NAME)["content"]


def _named(rows: list[dict[str, Any]], **names: str) -> list[dict[str, Any]]:
    """Return rows with some columns renamed, as in stored answers."""
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def _counts(steps: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the counts of all steps by name, leaving out counts that are zero in every step."""
    return {name: values for name in _COUNTS if any(values := [step[name] for step in steps])}


def _training(folder: Path) -> Answer:
    """Answer of ``gradring train``: final weights and state, the counts of every step, and settings."""
    report = _report(folder)
    with np.load(folder / "weights.npz") as archive:
        weights = _digest(archive["parameters"])
    state = _content(folder)["state"]
    reference = state["memory"]["reference"]
    assert report["bit_exact"], "nodes must have the golden bits"
    return {
        "weights": weights,
        "nodes": _digest(reference["weights"], reference["master"], *reference["state"], reference["errors"],
                         *([] if reference["residuals"] is None else [reference["residuals"]])),
        "losses": [step["loss"] for step in report["per_step"]],
        "measures": state["training"]["measures"],
        # A simulated board's clock runs while the host computes, so its total cycles vary from run to run.
        "cycles": None if report["transport"] == "board" else {"all": report["cycles"],
                                                               "simulated": report["cycles_simulated"]},
        "words": report["host_port"]["words_modelled"],
        "steps": _counts(report["per_step"]),
        "schedule": [step["schedule"] for step in report["per_step"]],
        "chosen": {name: report["training"][name] for name in _SETTINGS},
        "search": report["notes"] + [line for run in report["schedules"] for line in run["search"]],
        "timeline": [_digest(json.dumps(run["timeline"]).encode()) for run in report["schedules"]],
        "changes": _named(report["changes"], handover_cycles="carry_cycles"),
    }


def _quorum(folder: Path) -> Answer:
    """Answer of ``gradring train --straggler``."""
    report, state = _report(folder), _content(folder)
    assert report["bit_exact"], "nodes must have the golden bits"
    rounds, workers = (_named(report[rows], applied_late=name) for rows, name in (
        ("updates", "late"), ("workers", "folded")))
    return {"weights": _digest(state["master"]), "state": _digest(*state["state"]), "cycles": report["cycles"],
            "simulated": report["simulated_cycles"], "rounds": rounds, "workers": workers,
            "measured": report["measured"], "macs": report["settings"]["macs"]}


def _relay(folder: Path) -> Answer:
    """Answer of a run with layers streamed from a server."""
    report = json.loads((folder / "report.json").read_text())
    assert report["bit_exact"], "nodes must have the golden bits"
    state = _content(folder)["state"]
    return {"weights": _digest(*state["masters"]), "state": _digest(*(plane for planes in state["state"]
                                                                      for plane in planes)),
            "losses": report["losses"], "microbatch": report["microbatch"], "peak": report["peak"],
            "edits": report["edits"], "sets": report["per_step"]}


def _jobs(folder: Path) -> Answer:
    answers = {}
    for job in sorted(folder.glob("job-*")):
        report = _report(job)
        assert report["bit_exact"], "nodes must have the golden bits"
        answers[job.name] = {"losses": [step["loss"] for step in report["per_step"]],
                             "measures": report["accuracy_per_epoch"], "cycles": report["cycles"],
                             "steps": _counts(report["per_step"])}
    return answers


def _quantize(folder: Path) -> Answer:
    """Answer of ``gradring quantize``: accuracy, cycles and multiplications of each scheme, and the model."""
    report = _report(folder)
    names = ("label", "network", "bits", "scheme", "scale", "rounding", "accuracy", "cycles", "products",
             "requantizations", "bit_exact")
    with np.load(folder / "model.npz") as archive:
        model = _digest(*(archive[name] for name in sorted(archive.files) if archive[name].dtype.kind != "U"))
    return {"model": model, "rows": [[row[name] for name in names] for row in report["rows"]]}


def _launch(folder: Path) -> Answer:
    """Answer of ``gradring launch``: the words and cycles of each kind of operation."""
    report = _report(folder)
    assert report["checked"], "operations must be compared with the golden model"
    return {"words": report["words"], "cycles": report["cycles"], "operations": report["operations"],
            "groups": [{name: figure for name, figure in group.items() if name != "seconds"}
                       for group in report["groups"]]}


#: Script for `gradring launch`, which runs examples/pytorch_ddp.py and writes a digest of the weights.
DDP = "tests/known_answers/ddp_weights.py"

_TRAIN, _DIGITS = ("train",), ("train", "--hidden", "none", "--batch", "500")

#: For each run, its arguments without the output folder, and the function that reads its answer.
RUNS: dict[str, tuple[tuple[str, ...], Callable[[Path], Answer]]] = {
    "sim": ((*_TRAIN, "--steps", "3", "--state-planes", "2"), _training),
    "sim-adam": ((*_TRAIN, "--steps", "2", "--optimizer", "adam", "--no-compare"), _training),
    "text": ((*_TRAIN, "--workload", "text", "--steps", "2", "--batch", "8"), _training),
    "density": ((*_TRAIN, "--steps", "3", "--density", "0.1", "--no-compare", "--state-planes", "2"),
                _training),
    "mx9": ((*_DIGITS, "--steps", "3", "--weights", "mx9", "--gradients", "mx9"), _training),
    "codebook": ((*_DIGITS, "--steps", "3", "--weights", "centroid16"), _training),
    "compute": ((*_TRAIN, "--steps", "2", "--compute", "node"), _training),
    "compute-mx9": ((*_TRAIN, "--steps", "2", "--compute", "node", "--compute-format", "mx9"), _training),
    "compute-text": ((*_TRAIN, "--workload", "text", "--steps", "1", "--batch", "8", "--compute", "node"), _training),
    "compute-far": ((*_TRAIN, "--workload", "text", "--steps", "1", "--batch", "8", "--compute", "node",
                     "--activations", "6144", "--far", "1/4"), _training),
    "tiling": ((*_TRAIN, "--steps", "1", "--compute", "node", "--tiling", "searched"), _training),
    "layers": ((*_TRAIN, "--steps", "3", "--overlap", "layers"), _training),
    "search": ((*_TRAIN, "--steps", "8", "--hidden", "16x5", "--batch", "32", "--overlap", "search"), _training),
    "stale": ((*_TRAIN, "--steps", "4", "--hidden", "32,16", "--batch", "64", "--overlap", "delayed:2"), _training),
    "topology": ((*_DIGITS, "--steps", "4", "--topology", "2x4", "--disable", "card1@1", "--enable", "card1@3"),
                 _training),
    "slow-link": ((*_TRAIN, "--steps", "2", "--slow-link", "2:0.5"), _training),
    "slots": ((*_DIGITS, "--steps", "3", "--links", "slots"), _training),
    "jobs": ((*_DIGITS, "--steps", "2", "--links", "slots", "--jobs", "2"), _jobs),
    "straggler": ((*_TRAIN, "--straggler", "3:3", "--skew", "0.9", "--hidden", "8", "--batch", "4", "--macs", "1",
                   "--cycles", "60000", "--checkpoint", "1", "--seed", "3"), _quorum),
    "relay": (("train", "--schedule", "streaming", "--hidden", "32", "--nodes", "2", "--microbatch", "8", "--steps",
               "2", "--format",
               "mx4,mx9", "--underflow", "--checkpoint", "1"), _relay),
    "icebreaker": ((*_TRAIN, "--transport", "board", "--board", "icebreaker", "--steps", "3"), _training),
    "quantize": (("quantize", "--train", "--no-synth"), _quantize),
    "launch": (("launch", "-n", "2", DDP), _launch),
    "launch-mx9": (("launch", "-n", "2", "--gradients", "mx9", DDP), _launch),
}


def command(name: str, folder: Path) -> list[str]:
    """Return the ``gradring`` arguments for a run, including its output folder."""
    words, _ = RUNS[name]
    if words[0] == "launch":  # arguments after the script belong to the script
        return [words[0], "--output", str(folder), *words[1:]]
    return [*words, "--output", str(folder)]


def answer(name: str, folder: Path) -> Answer:
    """Read the answer of a run from its output folder, and return it as JSON data."""
    _, read = RUNS[name]
    result: Answer = json.loads(json.dumps(read(folder)))
    return result
