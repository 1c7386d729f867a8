"""Tables of means over seeds for the documentation, from training on digits with golden nodes.

``python -m tests.host.training.figures optimizers --seeds 60`` prints a table of docs/training/figures.md, as does
``int16``; ``density`` and ``settings`` print the tables of docs/masking/masking.md, and ``text`` prints the tables of
docs/text.md. Gateware nodes would give the same bits.
"""

import argparse
import contextlib
import functools
import statistics
from unittest import mock

import numpy as np

from host.driver.node_operations import NodeOperations
from host.models.digits import digits
from host.models.text import topics
from host.models.transformer import TransformerConfig
from host.training import sparsifier
from host.training.optimizers import LEARNING_RATES, SGD, Adam, OptimizerName, create
from host.training.record import TrainingConfig
from host.training.reference import Reference
from host.training.sparsifier import Threshold
from host.training.trainer import train
from host.training.workloads import CharacterModel
from tests.host.features.int16.integers import golden_ring
from tests.host.golden import GoldenRing

#: Accuracy that a run must reach, and number of images in the test set.
TARGET, IMAGES = 0.97, 360
PLAIN = SGD(learning_rate=LEARNING_RATES[OptimizerName.SGD])


class Counting(GoldenRing):
    """Ring that records the fraction of elements that each node keeps in each step."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.kept = []
        self._sparsify, self.local.sparsify = self.local.sparsify, self.sparsify

    def sparsify(self, length, *, threshold):
        outcome = self._sparsify(length, threshold=threshold)
        self.kept.append([1 - dropped / length for dropped in outcome.dropped])
        return outcome


@contextlib.contextmanager
def without_feedback():
    """Context in which nodes and golden models discard unsent elements instead of keeping them as errors."""
    def forget(model, *arguments, **options):
        kept = sparsify(model, *arguments, **options)
        model.errors[:] = 0
        return kept

    def forget_errors(local, where, **options):
        outcome = sparsify_nodes(local, where, **options)
        local._memory.clear_errors(where)
        return outcome

    sparsify, sparsify_nodes = Reference.sparsify, NodeOperations.sparsify
    with mock.patch.object(Reference, "sparsify", forget), mock.patch.object(
            NodeOperations, "sparsify", forget_errors):
        yield


def run(ring, config, **options):
    return train(ring, digits(), TrainingConfig(**config, **options, check=False))


def print_heading(*names):
    print("|".join(["", *(f" {name} " if name else " " for name in names), ""]))
    print("|".join(["", *(" --- " for name in names), ""]), flush=True)


def epoch_of(training):
    """Number of the first epoch that reaches ``TARGET``, or 99 if none does."""
    return next((epoch for epoch, accuracy in enumerate(training.measures, start=1) if accuracy >= TARGET), 99)


def optimizers(seeds):
    """Print how fast each optimizer converges."""
    rows = [("sgd", {}), ("momentum", {}), ("nesterov", {}), ("adam", {}), ("adamw", {}),
            ("momentum", {"packed_state": True}), ("adam", {"packed_state": True})]
    print_heading("optimizer", "learning rate", "reach 97 %", "median epoch", "sooner than SGD",
                  "accuracy at the end", "seed 0")
    plain = []
    for name, options in rows:
        optimizer = create(OptimizerName(name))
        runs = [run(GoldenRing(4), {"optimizer": optimizer, "seed": seed}, **options) for seed in range(seeds)]
        epochs, ends = [epoch_of(result) for result in runs], [result.measures[-1] for result in runs]
        plain = plain or epochs
        decay = getattr(optimizer, "weight_decay", 0)
        median = statistics.median(epochs)
        first = "none" if epochs[0] == 99 else epochs[0]
        print(f"| {name}{', bf16' if options else ''} | {optimizer.learning_rate:g}"
              f"{f', decay {decay:g}' if decay else ''} | {sum(epoch < 99 for epoch in epochs)} of {seeds} | "
              f"{'none' if median == 99 else f'{median:g}'} | "
              f"{sum(a < b for a, b in zip(epochs, plain, strict=True))} | "
              f"{statistics.mean(ends):.4f}, {min(ends):.4f} | {first}, {ends[0]:.4f} |", flush=True)


def int16(seeds):
    """Print the accuracy of a node that sums 16-bit integers."""
    print_heading("hidden layer", "elements", "mean accuracy", "least", "compressed words, of raw ones")
    room = {"gradient": 8192, "weight": 16384}
    for hidden in ((), (64,)):
        for elements, ring, density in (
                ("binary32", lambda: GoldenRing(1), None), ("int16", lambda: golden_ring(**room), None),
                ("int16, density 10 %", lambda: golden_ring(**room), 0.1)):
            runs = [run(ring(), {"optimizer": PLAIN, "hidden": hidden, "seed": seed, "density": density})
                    for seed in range(seeds)]
            ends = [done.measures[-1] for done in runs]
            shares = [step.words_sent / step.words_dense for done in runs for step in done.steps if step.words_dense]
            ratio = f"{statistics.mean(shares):.3f}" if shares else ""
            print(f"| {hidden[0] if hidden else 'none'} | {elements} | {100 * statistics.mean(ends):.2f} % | "
                  f"{100 * min(ends):.2f} % | {ratio} |", flush=True)


def sparse(seed, *, nodes=4, **options):
    """Train with sparse gradients; return the result of training and the ring."""
    ring = Counting(nodes)
    return run(ring, {"seed": seed, "density": 0.1}, **options), ring


def density(seeds):
    """Print the accuracy with sparse gradients for each seed."""
    print_heading("seed", "accuracy dense, %", "sparse, %", "density sent, %", "hop by hop, %", "share kept, %",
                  "threshold")
    for seed in range(seeds):
        dense = run(GoldenRing(4), {"seed": seed})
        training, ring = sparse(seed)
        hops = np.mean([step.density for step in training.steps], axis=0)
        thresholds = training.steps[0].threshold, training.steps[-1].threshold
        print(f"| {seed} | {100 * dense.measures[-1]:.2f} | {100 * training.measures[-1]:.2f} | "
              f"{100 * hops.mean():.2f} | {' → '.join(f'{100 * hop:.1f}' for hop in hops)} | "
              f"{', '.join(f'{100 * share:.2f}' for share in np.mean(ring.kept, axis=0))} | "
              f"{' → '.join(f'{threshold:.3f}' for threshold in thresholds)} |", flush=True)


def settings(seeds):
    """Print the accuracy with sparse gradients for various settings."""
    print_heading("", "seeds", "dense, sparse, %", "mean, least difference", "more than a point below",
                  "density sent, mean, most, %")
    slow = SGD(learning_rate=0.8, momentum=0.7)
    rows = [("as above", {}, {}), ("the same target in all steps (decay 1)", {}, {"decay": 1.0}),
            ("no error feedback: dropped elements are lost", {}, {"feedback": False}),
            ("momentum 0.7, learning rate 0.8 (dense: 0.9, 0.5)", {}, {"optimizer": slow}),
            *((f"{label}, {create(name).learning_rate:g}", {"optimizer": create(name)}, {"optimizer": create(name)})
              for label, name in (("Adam", OptimizerName.ADAM), ("SGD", OptimizerName.SGD))),
            *((f"{nodes} nodes", {"nodes": nodes}, {"nodes": nodes}) for nodes in (2, 8))]
    known = {}
    for label, dense_options, options in rows:
        nodes, key = dense_options.get("nodes", 4), label if dense_options else ""
        if key not in known:
            optimizer = {name: value for name, value in dense_options.items() if name != "nodes"}
            known[key] = [run(GoldenRing(nodes), {"seed": seed}, **optimizer).measures[-1] for seed in range(seeds)]
        changes = contextlib.ExitStack()
        if "decay" in options:
            changed = functools.partial(Threshold, decay=options.pop("decay"))
            changes.enter_context(mock.patch.object(sparsifier, "Threshold", changed))
        if not options.pop("feedback", True):
            changes.enter_context(without_feedback())
        with changes:
            runs = [sparse(seed, **options)[0] for seed in range(seeds)]
        ends = [result.measures[-1] for result in runs]
        sent = [100 * float(np.mean([step.density for step in result.steps])) for result in runs]
        images = [round(IMAGES * (a - b)) for a, b in zip(ends, known[key], strict=True)]
        mean, below = statistics.mean(images), sum(image <= -4 for image in images)
        print(f"| {label} | 0 to {seeds - 1} | {100 * statistics.mean(known[key]):.2f}, "
              f"{100 * statistics.mean(ends):.2f} | {mean:.1f}, {min(images)} | {below} of {seeds} | "
              f"{statistics.mean(sent):.2f}, {max(sent):.2f} |", flush=True)


def text(seeds):
    """Print held-out losses relative to the bigram model, and losses of batches, for runs of 200 steps."""
    print_heading("steps", "seed", *(f"step {step}" for step in range(50, 301, 50)), "0.1 below at step")
    losses = {}
    for steps in (150, 200, 300):
        for seed in range(seeds):
            task = CharacterModel(topics(context=TransformerConfig.context), sample=1)
            training = train(GoldenRing(4), task, TrainingConfig(
                batch=64, max_steps=steps, interval=10, optimizer=Adam(learning_rate=0.03), seed=seed, check=False))
            below = [measure - task.bigram_loss for measure in training.measures]
            reached = next((10 * number for number, loss in enumerate(below, start=1) if loss <= -0.1), "")
            shown = [f"{loss:+.3f}" for loss in below[4::5]]
            print(f"| {steps} | {seed} | {' | '.join([*shown, *[''] * (6 - len(shown))])} | {reached} |", flush=True)
            if steps == 200:
                losses[seed] = [training.steps[step - 1].loss for step in (1, 50, 100, 150, 200)]
    print_heading("seed", "step 1", "50", "100", "150", "200")
    for seed, values in losses.items():
        print(f"| {seed} | {' | '.join(f'{value:.3f}' for value in values)} |")


TABLES = {"optimizers": optimizers, "int16": int16, "density": density, "settings": settings, "text": text}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.host.training.figures",
                                     description=__doc__.split("\n", 1)[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=10, help="seeds, from 0 on [10]")
    values = parser.parse_args()
    TABLES[values.table](values.seeds)


if __name__ == "__main__":
    main()
