"""Test accuracy by schedule or by format, with several seeds, on golden nodes.

``python -m host.training.learning schedules`` trains a deep network, 64-32x9-10, by programs. No bit depends on the
schedule, except where layers compute with weights that lack the last update.

``python -m host.training.learning formats`` trains a network of one hidden layer with each format in both directions,
gradients with residuals; with ``--compute``, formats are those of the factors of matrix products, and weights and
gradients are raw. Nodes have the same bits, so it stands for runs of ``make sim WEIGHTS=… GRADIENTS=…`` or ``make sim
COMPUTE_FORMAT=…``, without their cycles.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hdl.config import NodeConfig, Weights
from host.columns import Column, Table, show
from host.driver.memory import fitted
from host.models.digits import Dataset, digits
from host.models.layers import widths
from host.training.late_learning import percentages
from host.training.optimizers import SGD
from host.training.record import Training, TrainingConfig
from host.training.schedule import programmed
from host.training.trainer import train
from host.training.workloads import Classifier
from host.transports.session import TransportName, open_session
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS

__all__ = ["learn", "main"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Study:
    """Defaults of a study."""

    values: str
    hidden: str
    seeds: int
    epochs: int
    rate: str


_STUDIES = {
    "schedules": _Study(values="layers", hidden="32x9", seeds=3, epochs=10, rate="0.02"),
    "formats": _Study(values="raw,mxfp8_e4m3,mxfp8_e4m3_up,mxfp4_e2m1,mxfp4_e2m1_up,nvfp4", hidden="64", seeds=5,
                      epochs=4, rate="0.1"),
}


def learn(data: Dataset, config: TrainingConfig, *, nodes: int = 4, format: str | None = None,
          on_step: Callable[[Training], None] = lambda training: None) -> float:
    """Train a perceptron on golden nodes, and return its test accuracy.

    Weights and gradients may have a format; what gradients lose goes into those of the next step.
    """
    task = Classifier(data, config.hidden, align=config.align, operands=config.compute_format)
    node = NodeConfig() if format is None else NodeConfig(weights=Weights(codec=format), gradients=format)
    length = task.parameters.size
    node = fitted(node, [config.allocation(length)], nodes=nodes)
    if config.overlap is not None:
        node = programmed(node, length, len(config.hidden) + 1, stale=config.overlaps, nodes=nodes)
    with open_session(node, nodes=nodes, transport=TransportName.GOLDEN) as session:
        return train(session.ring, task, dataclasses.replace(config, check=False), on_step=on_step).measures[-1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m host.training.learning", description=__doc__.split("\n", 1)[0])
    parser.add_argument("study", choices=_STUDIES)
    parser.add_argument("--values", help="schedules, as layers,delayed:2, or formats, as raw,mx9")
    parser.add_argument("--compute", action="store_true", help="formats are those of products")
    parser.add_argument("--hidden", help="widths of hidden layers, as 64 or 32x9 [32x9, formats 64]")
    parser.add_argument("--nodes", type=int, default=4, help="nodes [4]")
    parser.add_argument("--seeds", type=int, help="seeds, from 0 on [3, formats 5]")
    parser.add_argument("--epochs", type=int, help="epochs [10, formats 4]")
    parser.add_argument("--batch", type=int, default=32, help="most examples in a step [32]")
    parser.add_argument("--learning-rate", help="at the first step, one or several [0.02, formats 0.1]")
    parser.add_argument("--least", type=float, default=0.0, help="least mean accuracy, as a fraction [0]")
    return parser


def _cases(options: argparse.Namespace, study: _Study) -> Iterator[tuple[str, TrainingConfig, str | None]]:
    """Name, configuration and format of each row."""
    for value in (options.values or study.values).split(","):
        for rate in map(float, (options.learning_rate or study.rate).split(",")):
            config = TrainingConfig(
                epochs=options.epochs or study.epochs, batch=options.batch,
                hidden=tuple(widths(options.hidden or study.hidden)), optimizer=SGD(learning_rate=rate, momentum=0.9))
            match options.study, options.compute:
                case "schedules", _:
                    yield f"{value}, rate {rate:g}", dataclasses.replace(config, overlap=value), None
                case _, True:
                    yield value, dataclasses.replace(config, compute_format=value), "raw"
                case _:
                    known = [name for name in GRADIENT_CODECS if name in WEIGHT_CODECS]
                    if value not in known:
                        raise ValueError(f"Format must be one of {', '.join(known)}, not {value!r}")
                    yield value, config, value


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code, 1 where a mean is below the least that is asked for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    study = _STUDIES[options.study]
    try:
        cases = list(_cases(options, study))
    except ValueError as error:
        parser.error(str(error))
    data, rows = digits(), []
    for name, config, format in cases:
        accuracies = []
        for seed in range(options.seeds or study.seeds):
            accuracies.append(learn(data, dataclasses.replace(config, seed=seed), nodes=options.nodes, format=format))
            print(f"{name}, seed {seed}: test accuracy {accuracies[-1]:.2%}", flush=True)
        rows.append((name, accuracies))
    show(Table("test accuracy in per cent", (
        Column(options.study, of=lambda row: row[0]),
        Column("mean", format=".2f", of=lambda row: 100 * np.mean(row[1])),
        Column("each seed", of=lambda row: percentages(row[1]))), rows))
    return int(min(np.mean(accuracies) for _, accuracies in rows) < options.least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
