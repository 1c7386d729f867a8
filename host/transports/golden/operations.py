"""Operations that a golden node carries out by itself: masks, sparse gradients, and updates of 16-bit integers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventStatus, Operation
from hdl.masking.job_list import MASK_JOB_WORDS, mask_job_layout
from hdl.masking.mask import KINDS
from host.driver.command import Command
from host.driver.words import fields, places
from sim.golden import int16_node, masking

__all__ = ["Ended", "integers", "mask", "sparsify"]

Bits = npt.NDArray[np.uint32]
_JOB = places(mask_job_layout())


class Ended(NamedTuple):
    """End of a command on a node, and the growth of its counters."""

    status: EventStatus = EventStatus.OK
    detail: int = 0
    counts: Mapping[str, int] = {}


def _job(words: Bits) -> masking.Job:
    """Job of a list in memory."""
    values: dict[str, Any] = fields(_JOB, int.from_bytes(words.astype("<u4").tobytes(), "little"))
    kinds = {name: bool(values["kinds"] >> number & 1) for number, name in enumerate(KINDS)}
    diagonal = values["diagonal"] - (values["diagonal"] >> 31 << 32)
    bounds = {name: values[name] for name in ("length_rows", "length_columns", "first_row", "end_row", "first_column",
                                              "end_column", "width")}
    return masking.Job(rows=values["rows"], columns=values["columns"], count=values["count"],
                       mask=masking.Mask(**kinds, diagonal=diagonal, **bounds))


def mask(command: Command, gradients: Bits, weights: Bits, *, lanes: int, alternative: int) -> Ended:
    """MASK of binary32 numbers, with jobs as the driver writes them."""
    used, number, replaced, external = 0, command.weight_base, 0, command.state_base
    while used < command.length:
        job = _job(weights[number:number + MASK_JOB_WORDS])
        words = weights[external:external + masking.words_fetched(job)]
        kept = masking.kept(job, words if job.mask.external else None)
        elements = job.beats(lanes) * lanes
        base = command.gradient_base + used
        rows = gradients[base:base + elements].reshape(job.count, job.rows, -1)[..., :job.columns]
        rows[...] = masking.apply(rows, kept, alternative)
        replaced += int(np.count_nonzero(~kept))
        used, number, external = used + elements, number + MASK_JOB_WORDS, external + len(words)
    return Ended(detail=replaced, counts={"ELEMENTS_MASKED": replaced,
                                          "MASK_WORDS_FETCHED": external - command.state_base})


def sparsify(command: Command, gradients: Bits, weights: Bits, *, threshold: int) -> Ended:
    """SPARSIFY of binary32 numbers."""
    sent, errors = (memory[base:base + command.length] for memory, base in (
        (gradients, command.gradient_base), (weights, command.weight_base)))
    sent[:], errors[:] = masking.sparsify(sent, errors, threshold)
    dropped = command.length - int(np.count_nonzero(sent)) if threshold else 0
    return Ended(detail=dropped, counts={"ELEMENTS_MASKED": dropped})


def integers(command: Command, gradients: Bits, weights: Bits, registers: Mapping[str, int]) -> Ended:
    """Any operation of a node of 16-bit integers."""
    target = gradients[command.gradient_base:command.gradient_base + command.length]
    following = weights[command.weight_base:]
    first, second = (int16_node.from_words(words) for words in (target, following))
    match command.operation:
        case Operation.FUSED_UPDATE:
            update = int16_node.update(first, second[:command.length], gradient_scale=registers["GRADIENT_SCALE"],
                                       learning_rate=registers["LEARNING_RATE"])
            following[:command.length] = int16_node.to_words(update.weights)
            return Ended(counts={"COMPRESSED_WORDS": update.words})
        case Operation.SPARSIFY:
            kept = int16_node.sparsify(first, second[:command.length], registers["MASK_THRESHOLD"])
            target[:], following[:command.length] = map(int16_node.to_words, (kept.gradients, kept.errors))
            return Ended(detail=kept.dropped, counts={"ELEMENTS_MASKED": kept.dropped})
        case Operation.MASK:
            masked = int16_node.mask(first, second, registers["MASK_ALTERNATIVE"])
            target[:] = int16_node.to_words(masked.elements)
            if masked.bad is not None:
                return Ended(EventStatus.BAD_MASK, masked.bad, {"ELEMENTS_MASKED": masked.replaced})
            return Ended(detail=masked.replaced, counts={"ELEMENTS_MASKED": masked.replaced})
        case Operation.QUIESCE:
            return Ended()
    return Ended(EventStatus.UNKNOWN_OPERATION)
