"""Train on your own table, and see how gradient codecs affect the loss, the cycles and the words.

``python examples/own_data.py DATA.csv TARGET`` predicts the column TARGET from all other columns of a CSV file that
has a header and contains numbers. If the target has few distinct values, all integers, it is treated as a class, and
otherwise as a quantity. Without arguments, a sample table of 442 patients is written and used. ``--gradients
zero_value,mx9`` and ``--density 1,0.1`` choose the rows of the result.
"""

import argparse
import csv
import itertools
import pathlib

import numpy as np

import gradring

NODES, HIDDEN, MAX_CLASSES = 4, 24, 20


def write_sample(path):
    """Write a sample file: ten measurements per patient, and the progress of a disease."""
    from sklearn.datasets import load_diabetes
    table = load_diabetes(scaled=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*table.feature_names, "progression"])
        writer.writerows(row.tolist() for row in np.column_stack([table.data, table.target]))


def read(path, target):
    """Return the inputs and targets of all rows, shuffled."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    if target not in header:
        raise SystemExit(f"{path} has no column {target}, only {', '.join(header)}")
    table = np.array(rows, dtype=np.float64)
    table = table[np.random.default_rng(0).permutation(len(table))]
    column = header.index(target)
    return np.delete(table, column, axis=1), table[:, column]


class Model:
    """Perceptron with one hidden layer, for classes or a quantity. Its weights form a single vector."""

    def __init__(self, inputs, classes):
        self.classes = classes
        sizes = (inputs, HIDDEN, classes or 1)
        self.shapes = [shape for pair in itertools.pairwise(sizes) for shape in (pair, pair[1:])]
        self.length = sum(map(np.prod, self.shapes)).item()

    def first_weights(self):
        generator = np.random.default_rng(1)
        return np.concatenate([generator.standard_normal(np.prod(shape)) / np.sqrt(shape[0]) if len(shape) == 2
                               else np.zeros(shape) for shape in self.shapes]).astype(np.float32)

    def loss(self, weights, x, y):
        """Mean loss on a batch, and its gradient."""
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])[:-1]
        first, bias, second, offset = (part.reshape(shape) for part, shape in
                                       zip(np.split(weights, ends), self.shapes, strict=True))
        hidden = np.maximum(x @ first + bias, 0)
        out = hidden @ second + offset
        if self.classes:
            chances = np.exp(out - out.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            truth = np.eye(self.classes)[y.astype(int)]
            loss = -np.log((chances * truth).sum(axis=1)).mean()
            delta = (chances - truth) / len(y)
        else:
            error = out[:, 0] - y
            loss = (error ** 2).mean()
            delta = (2 * error / len(y))[:, None]
        back = (delta @ second.T) * (hidden > 0)
        parts = (x.T @ back, back.sum(axis=0), hidden.T @ delta, delta.sum(axis=0))
        return loss, np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def train(model, data, *, steps, batch, **options):
    """Train on a ring, and return the training loss, the test loss and the statistics of all steps."""
    (x, y), (unseen_x, unseen_y) = data
    generator = np.random.default_rng(2)
    with gradring.simulate(nodes=NODES, length=model.length, optimizer=gradring.Adam(0.01),
                           announce=lambda stage: print(f"{stage} …", flush=True), **options) as ring:
        weights = model.first_weights()
        ring.load(weights)
        for _ in range(steps):
            rows = generator.choice(len(x), batch, replace=False)
            gradients = [model.loss(weights, x[share], y[share])[1] for share in np.array_split(rows, NODES)]
            weights, _ = ring.step(np.stack(gradients))
        return model.loss(weights, x, y)[0], model.loss(weights, unseen_x, unseen_y)[0], ring.figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=pathlib.Path)
    parser.add_argument("target", nargs="?", default="progression")
    parser.add_argument("--gradients", default="zero_value,mx9", help="comma-separated codecs")
    parser.add_argument("--density", default="1", help="comma-separated fractions of the gradients to send")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="number of rows in a step, over all nodes")
    values = parser.parse_args()
    if values.file is None:
        values.file = pathlib.Path("build/examples/patients.csv")
        write_sample(values.file)

    x, y = read(values.file, values.target)
    kinds = np.unique(y)
    is_class = len(kinds) <= MAX_CLASSES and (kinds == np.round(kinds)).all()
    part = len(x) * 4 // 5  # the remaining rows are test data
    scale = x[:part].std(axis=0)
    x = (x - x[:part].mean(axis=0)) / np.where(scale > 0, scale, 1)
    y = np.searchsorted(kinds, y) if is_class else (y - y[:part].mean()) / y[:part].std()
    model = Model(x.shape[1], len(kinds) if is_class else 0)
    print(f"{values.file}: {len(x)} rows, {x.shape[1]} inputs, "
          f"{f'{len(kinds)} classes' if is_class else 'a quantity'}; {model.length:,} parameters on {NODES} nodes")

    rows = []
    for codec, density in itertools.product(values.gradients.split(","), map(float, values.density.split(","))):
        if density < 1 and codec != "zero_value":
            continue  # only zero_value sends fewer words for zeros
        options = {"gradients": codec, **({"density": density} if density < 1 else {})}
        rows.append((codec, density, *train(model, ((x[:part], y[:part]), (x[part:], y[part:])), steps=values.steps,
                                            batch=values.batch, **options)))
    print(f"\n{'gradients':<12}{'density':>8}{'loss':>9}{'unseen':>9}{'cycles/step':>13}{'words/step':>12}"
          f"{'of raw':>9}")
    for codec, density, loss, unseen, figures in rows:
        cycles = figures.cycles + figures.sparsify_cycles  # including the cycles for selecting the elements to send
        print(f"{codec:<12}{density:8.0%}{loss:9.4f}{unseen:9.4f}{cycles / values.steps:13,.0f}"
              f"{figures.words / values.steps:12,.0f}{figures.words / figures.words_dense:9.1%}")


if __name__ == "__main__":
    main()
