"""Measure the processor time of a job's all-reduces and of training, excluding node builds."""

import time

import numpy as np

from hdl.compression.registry import ZERO_VALUE
from host.driver.results import known
from host.jobs.figures import Figures
from host.jobs.simulate import simulate
from host.jobs.speed import BARS, NODES, measure
from host.models.digits import digits
from host.models.layers import perceptron
from host.training.optimizers import Adam

__all__ = ["job_speed_lab", "train"]

_STEPS = 10  # number of training steps


def train(steps: int, *, inputs: int = 784, hidden: int = 128, batch: int = 128
          ) -> tuple[list[float], Figures, float]:
    """Train a 784-128-10 perceptron on digits, with Adam on the nodes. Return the loss of each step's batch, the
    summed figures of all steps, and the processor seconds of the ring's steps, without the host's gradients."""
    data = digits()
    side, pixels = int(inputs ** 0.5), data.train_x.reshape(-1, 8, 8)
    block = np.arange(side) * 8 // side  # maps each row or column to one of the 8 x 8 image
    images = pixels[:, block][:, :, block].reshape(-1, inputs)
    model = perceptron(inputs, [hidden], data.classes)
    model.initialize(0)
    generator = np.random.default_rng(0)
    losses, seconds = [], 0.0
    with simulate(nodes=NODES, length=len(model.parameters), gradients=ZERO_VALUE, optimizer=Adam(1e-3)) as job:
        job.load(model.parameters)
        for _ in range(steps):
            chosen = generator.choice(len(images), batch, replace=False)
            passes = [model.differentiate(images[share], data.train_y[share])
                      for share in np.array_split(chosen, NODES)]
            begun = time.process_time()
            weights, _ = job.step(np.stack([gradient for _, gradient in passes]))
            seconds += time.process_time() - begun
            model.parameters[:] = weights
            losses.append(float(np.mean([loss for loss, _ in passes])))
        return losses, job.figures, seconds


def job_speed_lab() -> None:
    """Measure the processor time of a job's all-reduces, and of the training of a perceptron."""
    for length, (modelled, simulated) in measure().items():
        print(f"all-reduce of {length:,} elements on {NODES} nodes: {modelled:.2f} CPU s, at most {BARS[length]:g}; "
              f"{simulated:.2f} with simulated host ports", flush=True)
    losses, figures, seconds = train(_STEPS)
    print(f"step of Adam on {figures.elements // _STEPS:,} parameters, 784-128-10, on {NODES} nodes: "
          f"{seconds / _STEPS:.2f} CPU s, {known(figures.cycles) / _STEPS:,.0f} cycles, at least "
          f"{figures.bound / _STEPS:,.0f}; loss {losses[0]:.3f} to {losses[-1]:.3f} in {_STEPS} steps")
