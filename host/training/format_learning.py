"""Training with formats of weights, gradients and products on golden nodes: test accuracy by format and seed.

``python -m host.training.format_learning --formats raw,mxfp4_e2m1,mxfp4_e2m1_up`` trains the digits classifier with
each format in both directions, gradients with residuals, and prints the accuracy of each seed. Nodes have the same
bits, so it stands for runs of ``make sim WEIGHTS=… GRADIENTS=…``, without their cycles. With ``--compute`` formats
are those of the factors of matrix products, as of ``make sim COMPUTE_FORMAT=…``, and what travels is raw.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from host.columns import Column, Table, show
from host.models.digits import Dataset, digits
from host.training.batches import Batches
from host.training.golden_steps import falling, no_masks, percentages
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.workloads import Classifier
from sim.golden import ring
from sim.golden.codecs import GRADIENT_CODECS, RAW, WEIGHT_CODECS
from sim.golden.operands import OPERANDS

__all__ = ["learn", "main"]


def learn(data: Dataset, config: TrainingConfig, *, weights: str, gradients: str, nodes: int = 4) -> float:
    """Train a perceptron on a golden ring, and return its test accuracy.

    Parameters
    ----------
    weights, gradients : str
        Names of codecs; what gradients lose goes into those of the next step.
    """
    task = Classifier(data, config.hidden, operands=config.compute_format)
    task.initialize(config.seed)
    batches = Batches(task.examples, config)
    codec, gradient_codec = WEIGHT_CODECS[weights], GRADIENT_CODECS[gradients]
    master = ring.bits(task.parameters).copy()
    state = [np.zeros_like(master) for _ in range(config.optimizer.planes)]
    residuals = None if gradient_codec.exact else np.zeros((nodes, master.size), np.uint32)
    task.parameters[...] = ring.floats(ring.distribute(master, nodes, weight_codec=codec))
    for number in range(1, batches.total + 1):
        batch = batches.take()
        found = task.differentiate(np.array_split(batch.examples, nodes), no_masks)
        update = ring.fused_update(
            ring.bits(np.stack([gradient for _, gradient in found])), master, state,
            falling(config, number, total=batches.total, examples=len(batch.examples)), weight_codec=codec,
            gradient_codec=gradient_codec, residuals=residuals)
        master, state = update.master, update.state
        task.parameters[...] = ring.floats(update.weights)
    return task.measure(nodes, no_masks, last=True)


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.training.format_learning",
                                     description=__doc__.split("\n", 1)[0])
    parser.add_argument("--formats", default="raw,mxfp8_e4m3,mxfp8_e4m3_up,mxfp4_e2m1,mxfp4_e2m1_up,nvfp4",
                        help="names of formats, for weights and gradients alike")
    parser.add_argument("--seeds", type=int, default=5, help="seeds, from 0 on [5]")
    parser.add_argument("--epochs", type=int, default=4, help="epochs [4]")
    parser.add_argument("--batch", type=int, default=32, help="most examples in a step [32]")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="at the first step [0.1]")
    parser.add_argument("--compute", action="store_true", help="formats are those of products")
    options = parser.parse_args(arguments)
    names = options.formats.split(",")
    for name in names:
        formats = OPERANDS if options.compute else [one for one in GRADIENT_CODECS if one in WEIGHT_CODECS]
        if name not in formats:
            known = ", ".join(formats)
            parser.error(f"Format must be one of {known}, not {name!r}")
    data, rows = digits(), []
    for name in names:
        found = []
        for seed in range(options.seeds):
            config = TrainingConfig(epochs=options.epochs, batch=options.batch, hidden=(64,), seed=seed,
                                    compute_format=name if options.compute else TrainingConfig.compute_format,
                                    optimizer=SGD(learning_rate=options.learning_rate, momentum=0.9))
            travels = RAW if options.compute else name
            found.append(learn(data, config, weights=travels, gradients=travels))
            print(f"{name}, seed {seed}: test accuracy {found[-1]:.2%}", flush=True)
        rows.append((name, found))
    show(Table("test accuracy in per cent", (
        Column("format", of=lambda row: row[0]), Column("mean", format=".2f", of=lambda row: 100 * np.mean(row[1])),
        Column("each seed", of=lambda row: percentages(row[1]))), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
