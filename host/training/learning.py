"""Training by a program on golden nodes: does a deep network learn, without any gateware?

``python -m host.training.learning`` trains the network of the schedules, 64-32x9-10, or another one with some seeds,
and prints the test accuracy of each and their mean. No bit depends on the schedule, but of one whose layers compute
with weights that are an update behind.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hdl.group import GROUP
from host.columns import Column, Table, show
from host.models.digits import Dataset, digits
from host.models.layers import widths
from host.program.estimate import Costs
from host.program.schedules import Kind, Schedule, build, layers_of
from host.training.batches import Batches
from host.training.golden_steps import falling, no_masks, percentages
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.workloads import Classifier
from sim.golden import ring
from sim.golden.program_nodes import Nodes

__all__ = ["DEEP", "RATE", "learn", "main"]

#: Hidden layers of the deep network, and the learning rate that it learns with.
DEEP = (32,) * 9
RATE = 0.02


def learn(data: Dataset, config: TrainingConfig, schedule: Schedule, *, nodes: int = 4,
          on_step: Callable[[int, float], None] = lambda number, loss: None) -> float:
    """Train a perceptron by a program on golden nodes, and return its test accuracy.

    Parameters
    ----------
    on_step : callable
        Called with the number of each step and its mean loss.
    """
    task = Classifier(data, config.hidden, align=GROUP)
    task.initialize(config.seed)
    length = task.parameters.size
    batches = Batches(task.examples, config)
    staged = 1 << (length - 1).bit_length()
    costs = Costs(examples=-(-config.largest(task.examples) // nodes))
    layers = layers_of(task.widths)
    program = build(schedule, layers, nodes=nodes, costs=costs, staged=staged, distance=length).placed(nodes)
    golden = Nodes(nodes, gradient_words=2 * staged, weights=ring.bits(task.parameters),
                   planes=config.optimizer.planes, mastered=schedule.kind is Kind.DELAYED)
    # Where layers have two copies of their weights, both begin with the same.
    golden.weights, golden.weight_stride = np.tile(golden.weights, 2), length
    older = slice(0, sum(layer.length for layer in layers[:schedule.behind]))
    for number in range(1, batches.total + 1):
        batch = batches.take()
        odd = (number - 1) % 2
        _take(task.parameters, golden, older, odd)
        losses, gradients = zip(*task.differentiate(np.array_split(batch.examples, nodes), no_masks), strict=True)
        golden.settings = falling(config, number, total=batches.total, examples=len(batch.examples))
        golden.stage(ring.bits(np.stack(gradients)), staged)
        golden.run(program, seed=number, parity=odd)
        # The test set is for the newest weights.
        _take(task.parameters, golden, older, odd)
        on_step(number, sum(losses) / len(batch.examples))
    return task.measure(nodes, no_masks, last=True)


def _take(parameters: npt.NDArray[np.float32], golden: Nodes, apart: slice, odd: int) -> None:
    """Read weights from nodes, those of layers with two copies from the copy of even passes or of odd ones."""
    length = len(parameters)
    parameters[...] = ring.floats(golden.weights[0, :length])
    parameters[apart] = ring.floats(golden.weights[0, odd * length:][apart])


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code, 1 where a mean is below the least that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m host.training.learning", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--overlap", default=str(Schedule(Kind.LAYERS)),
                        help="schedules, as layers or delayed:0,delayed:1 [layers]")
    parser.add_argument("--hidden", default="", help="widths of hidden layers, as 64 or 32x9 [32x9]")
    parser.add_argument("--nodes", type=int, default=4, help="nodes [4]")
    parser.add_argument("--seeds", type=int, default=3, help="seeds, from 0 on [3]")
    parser.add_argument("--epochs", type=int, default=10, help="epochs [10]")
    parser.add_argument("--batch", type=int, default=32, help="most examples in a step [32]")
    parser.add_argument("--learning-rate", default=str(RATE), help=f"at the first step, one or several [{RATE}]")
    parser.add_argument("--least", type=float, default=0.0, help="least mean accuracy, as a fraction [0]")
    options = parser.parse_args(arguments)
    data, hidden = digits(), tuple(widths(options.hidden)) if options.hidden else DEEP
    rows = []
    for schedule in map(Schedule.parse, options.overlap.split(",")):
        for rate in map(float, options.learning_rate.split(",")):
            found = []
            for seed in range(options.seeds):
                config = TrainingConfig(epochs=options.epochs, batch=options.batch, hidden=hidden, seed=seed,
                                        optimizer=SGD(learning_rate=rate, momentum=0.9))
                found.append(learn(data, config, schedule, nodes=options.nodes))
                print(f"{schedule}, rate {rate:g}, seed {seed}: test accuracy {found[-1]:.2%}", flush=True)
            print(f"mean {np.mean(found):.2%}")
            rows.append((schedule, rate, found))
    if len(rows) > 1:
        show(Table("test accuracy in per cent", (
            Column("schedule", of=lambda row: str(row[0])),
            Column("learning_rate", format="g", of=lambda row: row[1]),
            Column("mean", format=".2f", of=lambda row: 100 * np.mean(row[2])),
            Column("each seed", of=lambda row: percentages(row[2]))), rows))
    return int(min(np.mean(found) for _, _, found in rows) < options.least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
