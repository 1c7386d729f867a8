"""Train your own numpy model on a simulated ring, and see how nine-bit gradients affect the loss.

Run it with ``python examples/numpy_model.py``, or with another codec: ``python examples/numpy_model.py mx6``.
"""

import itertools
import sys

import numpy as np
from sklearn.datasets import load_digits

import gradring

NODES, STEPS, BATCH = 4, 40, 128
SIZES = (64, 32, 10)


def split(weights):
    """Weight matrices and biases of the layers, as views into one vector."""
    layers, first = [], 0
    for inputs, outputs in itertools.pairwise(SIZES):
        matrix = weights[first:first + inputs * outputs].reshape(inputs, outputs)
        first += inputs * outputs
        layers.append((matrix, weights[first:first + outputs]))
        first += outputs
    return layers


def differentiate(weights, x, labels):
    """Mean cross-entropy on part of the batch, and its gradient."""
    (first, bias), (second, offset) = split(weights)
    hidden = np.maximum(x @ first + bias, 0)
    scores = hidden @ second + offset
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels]).mean()
    chances[rows, labels] -= 1
    chances /= len(labels)
    back = (chances @ second.T) * (hidden > 0)
    parts = (x.T @ back, back.sum(axis=0), hidden.T @ chances, chances.sum(axis=0))
    return loss, np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def main(codec):
    digits = load_digits()
    x, labels = (digits.data / 16).astype(np.float32), digits.target
    generator = np.random.default_rng(1)
    length = sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(SIZES))
    weights = (generator.standard_normal(length) * 0.15).astype(np.float32)
    with gradring.simulate(nodes=NODES, length=length, optimizer=gradring.Adam(0.02), gradients=codec,
                           announce=lambda stage: print(f"{stage} …", flush=True)) as ring:
        ring.load(weights)
        for step in range(1, STEPS + 1):
            batch = generator.choice(len(x), BATCH, replace=False)
            results = [differentiate(weights, x[share], labels[share]) for share in np.array_split(batch, NODES)]
            losses, gradients = zip(*results, strict=True)
            weights, figures = ring.step(np.stack(gradients))
            if step == 1 or step % 10 == 0:
                print(f"step {step:3}   loss {np.mean(losses):.4f}   {figures.cycles:,} cycles   {figures.words:,} "
                      f"words on the links, {figures.words / figures.words_dense:.1%} of raw ones")


main(sys.argv[1] if len(sys.argv) > 1 else "mx9")
