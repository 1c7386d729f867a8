"""Random values of all types that a message can carry."""

import math
import struct

import numpy as np

from host.training.optimizers import SGD, AdamW

__all__ = ["value"]

DTYPES = ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")


def array(generator):
    shape = [generator.randrange(4) for _ in range(generator.randrange(4))]
    dtype = np.dtype(generator.choice(DTYPES))
    data = generator.randbytes(math.prod(shape) * dtype.itemsize)
    if dtype == np.bool_:
        data = bytes(byte & 1 for byte in data)
    values = np.frombuffer(data, dtype).reshape(shape)
    return values.T if generator.random() < 0.2 else values


def key(generator):
    return generator.choice([generator.randrange(-5, 1 << 40), "".join(map(chr, generator.choices(range(600), k=3))),
                             (generator.randrange(9), generator.randrange(9)), True, None])


def value(generator, depth=0):
    """Draw a random value of any supported type."""
    kinds = [lambda: None, lambda: generator.random() < 0.5, lambda: generator.randrange(-1 << 200, 1 << 200),
             lambda: generator.randrange(300),
             lambda: generator.choice([math.inf, -math.inf, math.nan, -0.0, 5e-324,
                                       struct.unpack(">d", generator.randbytes(8))[0]]),
             lambda: "".join(map(chr, generator.choices([*range(300), 0xD800, 0x1F600], k=generator.randrange(9)))),
             lambda: generator.randbytes(generator.randrange(40)), lambda: array(generator),
             lambda: SGD(generator.random(), momentum=0.5, nesterov=generator.random() < 0.5),
             lambda: AdamW(generator.random(), betas=(generator.random(), 0.5), clip=generator.choice([None, 2.0]))]
    if depth < 4:
        kinds += [lambda: [value(generator, depth + 1) for _ in range(generator.randrange(4))],
                  lambda: tuple(value(generator, depth + 1) for _ in range(generator.randrange(4))),
                  lambda: {key(generator): value(generator, depth + 1) for _ in range(generator.randrange(4))}] * 2
    return generator.choice(kinds)()
