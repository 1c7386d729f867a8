"""Processor time of all-reduces of a job, with host ports that are simulated and with ports that are modelled, and of
the training of a perceptron.

Both kinds of ports must give the same sums. ``python -m host.jobs.speed`` prints the figures; the perceptron's nodes
are built first, once.
"""

import time
from typing import Any

import numpy as np

from hdl.compression.registry import ZERO_VALUE
from host.driver.results import known
from host.jobs.figures import Figures
from host.jobs.simulate import simulate
from host.models.digits import digits
from host.models.layers import perceptron
from host.training.optimizers import Adam

__all__ = ["BARS", "measure", "rows", "train"]

#: Most seconds of processor time for an all-reduce of so many elements, on four default nodes.
BARS = {10_000: 0.3, 100_000: 3.0}

NODES, PART = 4, 16_384


def measure() -> dict[int, tuple[float, float]]:
    """Seconds of processor time for each length, with modelled ports and with simulated ones.

    Raises ``AssertionError`` if the sums of both are not the same bits.
    """
    found = {}
    for length in BARS:
        values = np.random.default_rng(length).standard_normal((NODES, length)).astype(np.float32)
        seconds, sums = [], []
        for host_port in (False, True):
            with simulate(nodes=NODES, length=length, part=PART, gradients=ZERO_VALUE,
                          host_port=host_port) as job:
                job.all_reduce(values[:, :32])
                begun = time.process_time()
                sums.append(job.all_reduce(values)[0].tobytes())
                seconds.append(time.process_time() - begun)
        if sums[0] != sums[1]:
            raise AssertionError("Modelled and simulated host ports gave different sums")
        found[length] = (seconds[0], seconds[1])
    return found


def rows(seconds: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    """Rows for ``bench.json``: processor time with modelled ports, against its bar."""
    return [{"name": "job.all_reduce",
             "config": f"{NODES} nodes, {length:,} elements; {simulated:.2f} s with simulated host ports",
             "measured": modelled, "bound": BARS[length], "ratio": modelled / BARS[length], "unit": "CPU s"}
            for length, (modelled, simulated) in seconds.items()]


def train(steps: int, *, inputs: int = 784, hidden: int = 128, batch: int = 128
          ) -> tuple[list[float], Figures, float]:
    """Train a perceptron 784-128-10 on digits by Adam on the nodes.

    Returns
    -------
    losses : list of float
        Loss of each step's batch.
    figures : Figures
        Sum of the figures of all steps.
    seconds : float
        Processor time of the steps on the ring, without the host's gradients.
    """
    data = digits()
    side, pixels = int(inputs ** 0.5), data.train_x.reshape(-1, 8, 8)
    places = np.arange(side) * 8 // side  # each pixel as a block of pixels
    images = pixels[:, places][:, :, places].reshape(-1, inputs)
    model = perceptron(inputs, [hidden], data.classes)
    model.initialize(0)
    generator = np.random.default_rng(0)
    losses, seconds = [], 0.0
    with simulate(nodes=NODES, length=len(model.parameters), gradients=ZERO_VALUE, optimizer=Adam(1e-3)) as job:
        job.load(model.parameters)
        for _ in range(steps):
            chosen = generator.choice(len(images), batch, replace=False)
            found = [model.differentiate(images[share], data.train_y[share])
                     for share in np.array_split(chosen, NODES)]
            begun = time.process_time()
            weights, _ = job.step(np.stack([gradient for _, gradient in found]))
            seconds += time.process_time() - begun
            model.parameters[:] = weights
            losses.append(float(np.mean([loss for loss, _ in found])))
        return losses, job.figures, seconds


def main(steps: int = 10) -> None:
    for length, (modelled, simulated) in measure().items():
        print(f"all-reduce of {length:,} elements on {NODES} nodes: {modelled:.2f} CPU s, at most {BARS[length]:g}; "
              f"{simulated:.2f} with simulated host ports", flush=True)
    losses, figures, seconds = train(steps)
    print(f"step of Adam on {figures.elements // steps:,} parameters, 784-128-10, on {NODES} nodes: "
          f"{seconds / steps:.2f} CPU s, {known(figures.cycles) / steps:,.0f} cycles, at least "
          f"{figures.bound / steps:,.0f}; loss {losses[0]:.3f} to {losses[-1]:.3f} in {steps} steps")


if __name__ == "__main__":
    main()
