"""Checks of a job before anything is built for it."""

from collections.abc import Sequence

from hdl.compression.registry import RAW, ZERO_VALUE
from hdl.config import NodeConfig
from hdl.group import GROUP
from host.driver.buffers import aligned
from host.jobs.slots import largest_part
from host.training.density import check_zeros
from host.training.optimizers import Optimizer

__all__ = ["check_job", "gradient_codec", "groups_of"]


def gradient_codec(name: str | None, density: float | None) -> str:
    """Codec of gradients where none is named: as they are, or without their zeros if a density makes zeros."""
    if name is not None:
        return name
    return str(RAW if density is None else ZERO_VALUE)


def groups_of(lengths: Sequence[int]) -> list[slice]:
    """Places of groups in the vector, each of which begins at a multiple of 32."""
    groups: list[slice] = []
    for length in lengths:
        first = aligned(groups[-1].stop) if groups else 0
        groups.append(slice(first, first + length))
    return groups


def check_job(config: NodeConfig, lengths: Sequence[int], *, nodes: int, optimizers: Sequence[Optimizer] = (),
              packed_state: bool = False, density: float | None = None, part: int | None = None) -> int:
    """Elements of the longest part of a job's vector on such nodes. Parameters are those of :class:`Job`.

    Raises
    ------
    ValueError
        There can be no such job.
    """
    if not lengths or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in lengths):
        raise ValueError(f"Lengths must be one positive integer or more, not {list(lengths)!r}")
    if optimizers and len(optimizers) != len(lengths):
        raise ValueError(f"Optimizers must be one for each of {len(lengths)} groups, not {len(optimizers)}")
    if len({one.planes for one in optimizers}) > 1:
        raise ValueError("Optimizers of a job must have the same number of state planes, not "
                         f"{', '.join(str(one.planes) for one in optimizers)}: take a job for each")
    if config.codebook_words:
        raise ValueError(f"Weight codec of a job must be one without a codebook, not {config.weight_codec}")
    if config.reduced:
        raise ValueError(f"Nodes of a job must have elements of fp32, not of {config.element}")
    if density is not None and not 0 < density <= 1:
        raise ValueError(f"Density must be above 0 and at most 1, not {density!r}")
    if density is not None and not config.error_feedback:
        raise ValueError("Nodes must have error feedback for a density, to keep the elements that they do not send")
    if density is not None:
        check_zeros(config.gradient_codec)
    largest = largest_part(config, nodes=nodes, planes=optimizers[0].planes if optimizers else 0,
                           packed_state=packed_state, errors=density is not None)
    if part is not None and not (0 < part <= largest and part % GROUP == 0):
        raise ValueError(f"Part must be a positive multiple of {GROUP} of at most {largest:,} elements, not {part!r}")
    return largest if part is None else part
