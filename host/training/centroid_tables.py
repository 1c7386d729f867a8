"""Training of tables of centroids on a ring: how much accuracy do layers lose whose weights are indices?

``python -m host.training.centroid_tables`` trains the digits classifier, 64-64-10, with some seeds; clusters the
weights of each layer; and trains the tables, of which all nodes have one for each layer, with assignments kept. In
both parts the nodes of a simulated ring sum the gradients and update the parameters, and are compared with the golden
model after each step. Products and gradients of layers with tables are those of the golden model of
:mod:`hdl.compute.centroid_product`, which the host carries out: modelled.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np

from hdl.config import NodeConfig
from host.driver.ring import Ring
from host.models.centroid_layers import shared
from host.models.digits import Dataset, digits
from host.models.layers import Array
from host.training.optimizers import SGD
from host.training.record import Training, TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier
from host.transports.session import open_session
from sim.verilated.native import Arithmetic

__all__ = ["RATE", "CentroidClassifier", "Row", "compare", "main", "table"]

#: Learning rate of tables at the first step, with a momentum of 0.9. The gradient of a centroid is the sum of the
#: gradients of hundreds of weights.
RATE = 0.003


class CentroidClassifier(Classifier):
    """A perceptron whose layers have a table of centroids each; its parameters are tables and biases.

    Parameters
    ----------
    data : Dataset
    hidden : sequence of int
        Width of each hidden layer.
    parameters : array
        Parameters of the dense perceptron, whose weights are clustered.
    centroids : int
        Entries of a table.
    """

    def __init__(self, data: Dataset, hidden: Sequence[int], parameters: Array, *, centroids: int = 16):
        super().__init__(data, hidden)
        self._model.parameters[...] = parameters
        self._model = shared(self._model, centroids)
        self.parameters = self._model.parameters
        self.initialize(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Outcome of a seed.

    Members
    -------
    seed : int
    dense, clustered, trained : float
        Test accuracy of the dense perceptron, with clustered weights, and with tables that were trained.
    dense_words, table_words : int
        Words that all nodes have sent in a step, on average, with dense weights and with tables.
    steps : int
        Steps in which tables were trained.
    """

    seed: int
    dense: float
    clustered: float
    trained: float
    dense_words: float
    table_words: float
    steps: int


def compare(ring: Ring, data: Dataset, dense: TrainingConfig, tables: TrainingConfig, *, centroids: int = 16) -> Row:
    """Train a dense perceptron and then tables on a ring.

    Parameters
    ----------
    ring : Ring
    data : Dataset
    dense, tables : TrainingConfig
        Configurations of both runs, with the same hidden layers.
    centroids : int
    """
    whole = Classifier(data, dense.hidden)
    first = train(ring, whole, dense)
    task = CentroidClassifier(data, dense.hidden, whole.parameters, centroids=centroids)
    clustered = task.rate(task.scores())
    second = train(ring, task, tables)

    def sent(training: Training) -> float:
        return float(np.mean([step.words_sent for step in training.steps]))

    return Row(seed=dense.seed, dense=first.measures[-1], clustered=clustered, trained=second.measures[-1],
               dense_words=sent(first), table_words=sent(second), steps=len(second.steps))


def table(rows: Sequence[Row]) -> str:
    """Rows of all seeds and their mean, in Markdown; accuracies in per cent."""
    lines = ["| seed | dense | clustered | tables trained | less dense | steps | words a step: dense | tables |",
             "|---:|---:|---:|---:|---:|---:|---:|---:|"]
    mean = Row(seed=-1, **{field.name: np.mean([getattr(row, field.name) for row in rows])
                           for field in dataclasses.fields(Row) if field.name != "seed"})
    for row in [*rows, mean]:
        name = "mean" if row is mean else row.seed
        lines.append(f"| {name} | {100 * row.dense:.2f} | {100 * row.clustered:.2f} | {100 * row.trained:.2f} | "
                     f"{100 * (row.trained - row.dense):+.2f} | {row.steps:.0f} | {row.dense_words:,.0f} | "
                     f"{row.table_words:,.0f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code, 1 where tables lose more than a point on average."""
    parser = argparse.ArgumentParser(prog="python -m host.training.centroid_tables",
                                     description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5, help="seeds, from 0 on [5]")
    parser.add_argument("--nodes", type=int, default=4, help="nodes [4]")
    parser.add_argument("--centroids", type=int, default=16, help="entries of a table [16]")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of tables [5]")
    parser.add_argument("--learning-rate", type=float, default=RATE, help=f"of tables at the first step [{RATE}]")
    options = parser.parse_args(arguments)
    rows = []
    with open_session(NodeConfig(), nodes=options.nodes, threads=2, arithmetic=Arithmetic.NATIVE,
                      host_port=False) as session:
        for seed in range(options.seeds):
            tables = TrainingConfig(epochs=options.epochs, seed=seed,
                                    optimizer=SGD(learning_rate=options.learning_rate, momentum=0.9))
            rows.append(compare(session.ring, digits(), TrainingConfig(seed=seed), tables,
                                centroids=options.centroids))
            print(table(rows[-1:]).splitlines()[-2], flush=True)
    print(table(rows))
    return int(np.mean([row.trained - row.dense for row in rows]) < -0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
