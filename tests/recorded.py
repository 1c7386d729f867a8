"""Gradients of the models that the lab `formats` has recorded, for tests that judge formats."""

import functools

from host.gradients.files import load
from host.labs.formats.lab import RECORDED
from host.labs.formats.measures import Gradients

__all__ = ["MODELS", "gradients"]

MODELS = tuple(RECORDED)


@functools.cache
def gradients(model, *, scale=1.0):
    """Recorded gradients of a model, multiplied by a factor."""
    return Gradients(load(RECORDED[model]), scale=scale)
