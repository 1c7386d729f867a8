"""The text model on nodes with far memories, whose saved maps are kept, moved or made again.

Each sequence is a program of three queues (:mod:`host.compute.far_text`), which nodes are given in front of it.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compute.layer_list import PADDING
from hdl.config import NodeConfig
from host.compute.factors import Array as Units
from host.compute.far_text import FarText, fit_text
from host.compute.text_lists import compile_text
from host.compute.text_operations import TextOperations
from host.driver.ring import Ring
from host.models.text import Characters
from host.models.transformer import TransformerConfig
from host.training.text_engine import TextComputer

__all__ = ["FarTextComputer", "far_text_node", "operations_of"]
