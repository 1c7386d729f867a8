"""A transformer small enough for finite differences, with random sequences for it."""

import numpy as np

from host.models.text import Batch, collate
from host.models.transformer import Transformer, TransformerConfig

TINY = TransformerConfig(width=6, heads=2, layers=2, hidden=5, context=5, characters=7)


def slope(function, vector, index, step=1e-6):
    """Partial derivative of ``function``, approximated by a central difference."""
    above, below = vector.copy(), vector.copy()
    above[index] += step
    below[index] -= step
    return (function(above) - function(below)) / (2 * step)


def sequences(generator, lengths, characters=TINY.characters):
    """Draw random sequences, with the numbers of predicted characters given by ``lengths``."""
    return [generator.integers(0, characters, length + 1) for length in lengths]


def tiny(seed, dtype=np.float32):
    model = Transformer(TINY, dtype=dtype)
    # All parameters are random, so that none has a special value such as a shift of zero.
    model.parameters[...] = np.random.default_rng(seed).standard_normal(model.size) * 0.6
    return model


def same(a, b):
    """Return whether two float32 arrays have the same bits."""
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def mean_loss(model, sequences, batch=64):
    """Return the loss in nats per predicted character; evaluate ``batch`` sequences at a time, shortest first."""
    ordered = sorted(sequences, key=len)
    total = sum(model.loss(collate(ordered[n:n + batch])) for n in range(0, len(ordered), batch))
    return total / sum(len(sequence) - 1 for sequence in sequences)


def real(batch):
    """Return a mask of the positions in a batch that are not padding."""
    return np.arange(batch.inputs.shape[1]) < batch.lengths[:, None]


def repad(batch, generator, characters=TINY.characters):
    """Return a copy of a batch with random values in its padding."""
    other = generator.integers(0, characters, (2, *batch.inputs.shape))
    return Batch(np.where(real(batch), batch.inputs, other[0]), np.where(real(batch), batch.targets, other[1]),
                 batch.lengths)


def single(shapes, draw):
    """Draw the parameters of a layer, in float32."""
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}
