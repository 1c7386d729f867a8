"""Compare test accuracies of schedules or of number formats, over several seeds on golden nodes.

Study ``schedules`` trains a deep network, 64-32x9-10, with programs. Results depend on the schedule only if layers
compute with weights that lack the last update.

Study ``formats`` trains a network with one hidden layer, using each format for weights and gradients, with gradient
residuals. With ``--compute`` the formats apply to the operands of matrix products instead, and weights and gradients
are raw. Results are bit-identical to ``make sim WEIGHTS=… GRADIENTS=…`` or ``make sim COMPUTE_FORMAT=…``.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np
import typer

from hdl.config import NodeConfig, Weights
from host.columns import Column, Table, show
from host.driver.memory import fitted
from host.features.programs.execution import programmed
from host.labs.kit import chosen_names, end, names, numbers
from host.labs.late.lab import percentages
from host.models.digits import Dataset, digits
from host.models.layers import widths
from host.options import COUNT, Option, Section, command, option
from host.training.optimizers import SGD
from host.training.record import Training, TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier
from host.transports.session import TransportName, open_session
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS

__all__ = ["learn", "learning_lab"]


class Study(enum.StrEnum):
    """Property of the training that a study varies."""

    SCHEDULES = "schedules"
    FORMATS = "formats"


class _Defaults(NamedTuple):
    """Default values of a study's options."""

    values: str
    hidden: str
    seeds: int
    epochs: int
    rate: str


_STUDIES = {
    Study.SCHEDULES: _Defaults(values="layers", hidden="32x9", seeds=3, epochs=10, rate="0.02"),
    Study.FORMATS: _Defaults(values="raw,mxfp8_e4m3,mxfp8_e4m3_up,mxfp4_e2m1,mxfp4_e2m1_up,nvfp4", hidden="64",
                             seeds=5, epochs=4, rate="0.1"),
}


def learn(data: Dataset, config: TrainingConfig, *, nodes: int = 4, format: str | None = None,
          on_step: Callable[[Training], None] = lambda training: None) -> float:
    """Train a perceptron on golden nodes; return its test accuracy. If a format is given, weights and gradients are
    rounded to it, and gradient rounding errors are added to the next step's gradients."""
    task = Classifier(data, config.hidden, align=config.align, operands=config.compute_format)
    length = task.parameters.size
    node = NodeConfig() if format is None else NodeConfig(weights=Weights(codec=format), gradients=format)
    node = fitted(node, [config.allocation(length)], nodes=nodes)
    if config.overlap is not None:
        node = programmed(node, length, len(config.hidden) + 1, stale=config.overlaps, nodes=nodes)
    with open_session(node, nodes=nodes, transport=TransportName.GOLDEN) as session:
        return train(session.ring, task, dataclasses.replace(config, check=False), on_step=on_step).measures[-1]


def _formats(text: str) -> list[str]:
    """Return the names in a text; raises ``ValueError`` for a name that is not a format of weights and gradients."""
    both = [name for name in GRADIENT_CODECS if name in WEIGHT_CODECS]
    for name in names(text):
        if name not in both and (name in GRADIENT_CODECS or name in WEIGHT_CODECS):
            kind, other = ("gradients", "weights") if name in GRADIENT_CODECS else ("weights", "gradients")
            raise ValueError(f"Format must be one of weights and gradients, since a row has both in the same format, "
                             f"not {name}, which is of {kind} only: choose another one, or train with --{kind} "
                             f"{name} and other {other}")
    return chosen_names("Format", text, both)


@dataclasses.dataclass(frozen=True)
class CaseOptions(Section):
    """Training options that all rows of the table share."""

    values: str | None = option(None, help="Schedules, such as layers,delayed:2, or formats, such as raw,mx9.")
    compute: bool = option(False, "--compute", help="Compare formats of matrix products.")
    hidden: str | None = option(None, help="Widths of hidden layers, such as 64 or 32x9.",
                                shown_default="32x9; for formats 64")
    seeds: int | None = option(None, help="Number of seeds, starting from 0.", minimum=1, maximum=COUNT,
                               shown_default="3; for formats 5")
    epochs: int | None = option(None, help="Number of epochs.", minimum=1, maximum=COUNT,
                                shown_default="10; for formats 4")
    batch: int = option(32, help="Maximum number of examples in a step.", minimum=1, maximum=COUNT)
    learning_rate: str | None = option(None, help="Comma-separated learning rates at the first step.",
                                       shown_default="0.02; for formats 0.1")

    def cases(self, study: Study) -> Iterator[tuple[str, TrainingConfig, str | None]]:
        """Yield the name, training configuration and format of each table row."""
        usual = _STUDIES[study]
        text = self.values or usual.values
        plain = study is Study.SCHEDULES or self.compute
        for value in names(text) if plain else _formats(text):
            for rate in numbers("Learning rates", self.learning_rate or usual.rate, float):
                config = TrainingConfig(
                    epochs=self.epochs or usual.epochs, batch=self.batch, hidden=widths(self.hidden or usual.hidden),
                    optimizer=SGD(learning_rate=rate, momentum=0.9))
                if study is Study.SCHEDULES:
                    yield f"{value}, rate {rate:g}", dataclasses.replace(config, overlap=value), None
                elif self.compute:
                    yield value, dataclasses.replace(config, compute_format=value), "raw"
                else:
                    yield value, config, value


@command
def learning_lab(
    study: Annotated[Study, typer.Argument(help="What to compare.")],
    *,
    rows: CaseOptions,
    nodes: Annotated[int, Option("Number of nodes.", minimum=1, maximum=16)] = 4,
    least: Annotated[float, Option("Required mean accuracy, as a fraction; the exit code is 1 if it is lower.",
                                      minimum=0, maximum=1)] = 0.0,
) -> None:
    """Compare test accuracies by schedule or by format, on golden nodes."""
    cases, data, outcomes = list(rows.cases(study)), digits(), []
    for name, config, format in cases:
        accuracies = []
        for seed in range(rows.seeds or _STUDIES[study].seeds):
            accuracies.append(learn(data, dataclasses.replace(config, seed=seed), nodes=nodes, format=format))
            print(f"{name}, seed {seed}: test accuracy {accuracies[-1]:.2%}", flush=True)
        outcomes.append((name, accuracies))
    show(Table("test accuracy in per cent", (
        Column(study.value, of=lambda row: row[0]),
        Column("mean", format=".2f", of=lambda row: 100 * np.mean(row[1])),
        Column("each seed", of=lambda row: percentages(row[1]))), outcomes))
    end(min(np.mean(accuracies) for _, accuracies in outcomes) < least)
