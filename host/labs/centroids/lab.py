"""Train layers that store indices into a centroid table instead of weights, and measure the loss of accuracy.

For each seed, the lab trains the digits classifier, 64-64-10, clusters the weights of each layer, and trains the
tables with fixed assignments; each layer has one table, the same on all nodes. In both parts, the nodes of a
simulated ring compute and sum the gradients and update the parameters; they are compared with the golden model after
each step, and count their multiplications with centroids. With ``--compute host`` the host computes products and
gradients with the golden models; the results are bit-identical.

The rows for each seed are stored in build/centroids/tables.json and reused by later runs with the same options.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hdl.config import NodeConfig
from host.columns import Column, Table
from host.driver.ring import Ring
from host.features.codebook_layers.layers import CentroidLinear, shared
from host.features.compute.engine import engine_node
from host.features.compute.lists import Shared
from host.labs.kit import BUILD, Results, end
from host.models.digits import Dataset, digits
from host.models.layer_shapes import Dense
from host.models.layers import Array
from host.options import COUNT, Option, Section, command, option
from host.output import write_json
from host.training.optimizers import SGD
from host.training.record import HOST, NODE, Training, TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier
from host.transports.session import open_session
from sim import json_files
from sim.golden.operands import FP32
from sim.verilated.native import Arithmetic

__all__ = ["RATE", "CentroidClassifier", "Row", "centroids_lab", "compare", "nodes_for", "table"]

#: Learning rate of tables at the first step, with a momentum of 0.9. It is small, since the gradient of a centroid is
#: the sum of the gradients of hundreds of weights.
RATE = 0.003


class CentroidClassifier(Classifier):
    """A perceptron with a table of ``centroids`` values in each layer. Its parameters are the tables and the biases.

    It is created from the parameters of a dense perceptron by clustering the weights. Matrix products that do not use
    centroids have factors in the format ``operands``.
    """

    def __init__(self, data: Dataset, hidden: Sequence[int], parameters: Array, *, centroids: int = 16,
                 align: int = 1, operands: str = FP32):
        super().__init__(data, hidden, operands=operands)
        self._model.parameters[...] = parameters
        self._model = shared(self._model, centroids, align=align)
        self._centroids = centroids
        self.parameters = self._model.parameters
        self.initialize(0)

    @property
    def layers(self) -> list[Dense]:
        layers: list[Dense] = []
        indices = [layer.codebook.indices for layer in self._model.layers if isinstance(layer, CentroidLinear)]
        for dense, own in zip(super().layers, indices, strict=True):
            base = layers[-1].base + layers[-1].length if layers else 0
            layers.append(Shared(dense.number, dense.inputs, dense.outputs, base, own, self._centroids))
        return layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the lab's results, for one seed."""

    seed: int
    #: Test accuracy of the dense perceptron, after clustering its weights, and after training the tables.
    dense: float
    clustered: float
    trained: float

    #: Mean number of words sent per step by all nodes, with dense weights and with tables.
    dense_words: float
    table_words: float

    steps: int  # number of steps in the training of the tables
    #: Mean number of compute cycles per step with tables, on the slowest node; 0 if the host computes.
    cycles: float
    #: Number of multiplications with centroids per output of a product or gradient sum, as counted by the nodes; 0 if
    #: the host computes.
    multiplications: float


def compare(ring: Ring, data: Dataset, dense: TrainingConfig, tables: TrainingConfig, *, centroids: int = 16) -> Row:
    """Train a dense perceptron, then its tables, on a ring; both use the same hidden layers."""
    whole = Classifier(data, dense.hidden, align=dense.align)
    first = train(ring, whole, dense)
    task = CentroidClassifier(data, dense.hidden, whole.compact(whole.parameters), centroids=centroids,
                              align=tables.align)
    clustered = task.rate(task.scores())
    second = train(ring, task, tables)

    def sent(training: Training) -> float:
        return float(np.mean([step.words_sent for step in training.steps]))

    # Per example, the forward product and the table-gradient product each have one result per output of the layer,
    # and the backward product has one per input.
    outputs = tables.epochs * task.examples * sum(
        2 * layer.outputs + layer.inputs * (layer.number > 1) for layer in task.layers)
    return Row(seed=dense.seed, dense=first.measures[-1], clustered=clustered, trained=second.measures[-1],
               dense_words=sent(first), table_words=sent(second), steps=len(second.steps),
               cycles=float(np.mean([np.nan if step.compute_cycles is None else step.compute_cycles
                                     for step in second.steps])),
               multiplications=sum(step.centroid_multiplications for step in second.steps) / outputs)


def nodes_for(dense: TrainingConfig, tables: TrainingConfig, *, centroids: int, nodes: int) -> NodeConfig:
    """Configure nodes for both trainings of a seed, with memory for lists and indices if the nodes compute."""
    node, data = NodeConfig(), digits()
    if tables.compute == HOST:
        return node
    whole = Classifier(data, dense.hidden)
    whole.initialize(0)  # only the shapes of the weights matter
    task = CentroidClassifier(data, dense.hidden, whole.parameters, centroids=centroids, align=tables.align)
    return engine_node(engine_node(node, whole, dense, nodes=nodes), task, tables, nodes=nodes)


def table(rows: Sequence[Row]) -> Table:
    """Format the results of all seeds and their mean as a table, with accuracies in percent."""
    mean = Row(seed=-1, **{field.name: np.mean([getattr(row, field.name) for row in rows])
                           for field in dataclasses.fields(Row) if field.name != "seed"})

    def percent(name: str, title: str = "") -> Column:
        return Column(name, format=lambda value: f"{100 * value:.2f}", title=title)

    return Table("tables of centroids; accuracies in per cent", (
        Column("seed", of=lambda row: "mean" if row is mean else str(row.seed)), percent("dense"),
        percent("clustered"), percent("trained", "tables trained"),
        Column("gain", lambda value: f"{100 * value:+.2f}", "less dense", of=lambda row: row.trained - row.dense),
        Column("steps", format=".0f"), Column("dense_words", format=",.0f", title="words: dense"),
        Column("table_words", format=",.0f", title="words: tables"), Column("cycles", format=",.0f"),
        Column("multiplications", format=".2f", title="multiplied")), [*rows, mean])


@dataclasses.dataclass(frozen=True)
class TableOptions(Section):
    """Options for training the tables of centroids. Rows of an earlier run with different options are discarded."""

    nodes: int = option(4, help="Number of nodes.", minimum=1, maximum=16)
    centroids: int = option(16, help="Entries in a table: 4, 8 or 16, or with --compute host 2 to 256.", minimum=2,
                            maximum=256)
    epochs: int = option(5, help="Epochs of training with tables.", minimum=1, maximum=COUNT)
    learning_rate: float = option(RATE, help="Learning rate of the tables at the first step.", minimum=0,
                                  maximum=1000)
    compute: str = option(NODE, help=f"Where gradients are computed: {HOST} or {NODE}.", choices=(HOST, NODE))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compute == NODE and self.centroids not in (4, 8, 16):
            raise ValueError(f"Centroids must be 4, 8 or 16 on nodes that compute, not {self.centroids}: choose one "
                             f"of these, or --compute host")

    def configs(self, seed: int) -> tuple[TrainingConfig, TrainingConfig]:
        """Return the configurations for training the dense weights and the tables."""
        return TrainingConfig(seed=seed, compute=self.compute), TrainingConfig(
            epochs=self.epochs, seed=seed, compute=self.compute,
            optimizer=SGD(learning_rate=self.learning_rate, momentum=0.9))


@command
def centroids_lab(
    *,
    seeds: Annotated[int, Option("Number of seeds, starting from 0.", minimum=1, maximum=COUNT)] = 5,
    tables: TableOptions,
    output: Annotated[Path, Option("Folder for tables.json.", shown_default="build/centroids")] = BUILD / "centroids",
) -> None:
    """Train tables of centroids on a ring, and compare their accuracy with dense weights."""
    path, asked = output / "tables.json", dataclasses.asdict(tables)
    rows = _kept(path, asked)
    results = Results(output, path.name, keep=(path.name,) if rows else ())
    missing = [seed for seed in range(seeds) if seed not in rows]
    with contextlib.ExitStack() as stack:
        if missing:
            node = nodes_for(*tables.configs(0), centroids=tables.centroids, nodes=tables.nodes)
            session = stack.enter_context(open_session(
                node, nodes=tables.nodes, threads=2, arithmetic=Arithmetic.NATIVE, host_port=False))
        for seed in missing:
            rows[seed] = compare(session.ring, digits(), *tables.configs(seed), centroids=tables.centroids)
            write_json(path, json_files.sealed({**asked, "rows": [dataclasses.asdict(row) for row in rows.values()]}))
            results.show(table([rows[seed]]))
    wanted = [rows[seed] for seed in range(seeds)]
    results.show(table(wanted))
    end(np.mean([row.trained - row.dense for row in wanted]) < -0.01)


def _kept(path: Path, fields: dict[str, Any]) -> dict[int, Row]:
    """Read the rows of an earlier run with the same options, keyed by seed."""
    try:
        content = json_files.read_sealed(path)
    except (FileNotFoundError, ValueError):
        return {}
    rows = [Row(**row) for row in content.pop("rows")]
    return {row.seed: row for row in rows} if content == fields else {}
