"""A transformer that is small enough for finite differences, and random sequences for it."""

import numpy as np

from host.models.text import Batch, collate
from host.models.transformer import Transformer, TransformerConfig

TINY = TransformerConfig(width=6, heads=2, layers=2, hidden=5, context=5, characters=7)


def slope(function, vector, index, step=1e-6):
    """Partial derivative of ``function`` by central difference."""
    above, below = vector.copy(), vector.copy()
    above[index] += step
    below[index] -= step
    return (function(above) - function(below)) / (2 * step)


def sequences(generator, lengths, characters=TINY.characters):
    """Random sequences with the given numbers of predicted characters."""
    return [generator.integers(0, characters, length + 1) for length in lengths]


def tiny(seed, dtype=np.float32):
    model = Transformer(TINY, dtype=dtype)
    # No parameter has a special value, for example a shift of zero.
    model.parameters[...] = np.random.default_rng(seed).standard_normal(model.size) * 0.6
    return model


def same(a, b):
    """Whether all bits of two float32 arrays are equal."""
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def mean_loss(model, sequences, batch=64):
    """Loss per predicted character in nats, computed for ``batch`` sequences at a time, the shortest ones first."""
    ordered = sorted(sequences, key=len)
    total = sum(model.loss(collate(ordered[n:n + batch])) for n in range(0, len(ordered), batch))
    return total / sum(len(sequence) - 1 for sequence in sequences)


def real(batch):
    """True at all positions that are not padding, in the shape of the inputs."""
    return np.arange(batch.inputs.shape[1]) < batch.lengths[:, None]


def repad(batch, generator, characters=TINY.characters):
    """The same batch with random contents in the padding."""
    other = generator.integers(0, characters, (2, *batch.inputs.shape))
    return Batch(np.where(real(batch), batch.inputs, other[0]), np.where(real(batch), batch.targets, other[1]),
                 batch.lengths)


def single(shapes, draw):
    """Random parameters of a layer in float32."""
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}
