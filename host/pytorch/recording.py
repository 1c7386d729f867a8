"""Recording of gradients on each rank, as they are before they are encoded or summed.

Elements are copied during the backward pass, and written to files by another thread. After an error, the rank prints
one line and records no more.
"""

import collections
import functools
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

from hdl.group import GROUP
from host.gradients.choice import MAX_RUNS, RUN, is_sampled, runs_of
from host.gradients.files import LIMIT, Sample, check_folder, file_name, save
from host.printable import printable
from host.pytorch.messages import RECORD

__all__ = ["Recorder", "Source", "has_sources", "is_sampled", "recorder", "source"]

#: Number of steps over which the size of a recording is divided: powers of two up to 2^31.
_STEPS = 32
#: Maximum length of a parameter's name in characters, and approximate number of bytes that describe a sample.
_MAX_NAME, _DESCRIPTION = 1000, 256


class Recorder:
    """Writer of this rank's gradients to a folder.

    Parameters
    ----------
    folder : Path
    limit : int
        Maximum number of bytes that all ranks record, before compression.
    """

    def __init__(self, folder: Path, *, limit: int = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self._used = 0
        self._writer = ThreadPoolExecutor(1, "gradring-recording")
        self._failed = False

    def elements(self, ranks: int) -> int:
        """Maximum number of elements in a file, which is the same for all steps."""
        return self._limit // (ranks * _STEPS * 4)

    def write(self, samples: list[Sample], *, wait: bool = False) -> None:
        """Write the samples of a source and step to a file, in another thread unless ``wait`` is set."""
        if self._failed or not samples:
            return
        self._used += sum(sample.values.nbytes + _DESCRIPTION for sample in samples)
        if self._used > self._limit // samples[0].ranks:
            self._stop(samples[0], f"{self._limit / 1e6:g} MB are the limit of all ranks")
        elif wait:
            self._save(samples)
        else:
            self._writer.submit(self._save, samples)

    def _save(self, samples: list[Sample]) -> None:
        if self._failed:
            return
        first = samples[0]
        try:
            save(self._folder / file_name(first.source, first.step, first.rank), samples)
        except Exception as error:  # training continues after any error
            self._stop(first, str(error).replace("--output", RECORD))

    def _stop(self, sample: Sample, reason: str) -> None:
        self._failed = True
        print(f"rank {sample.rank} records no more gradients from step {sample.step:,} on: {reason}", file=sys.stderr,
              flush=True)


@functools.cache
def recorder() -> Recorder | None:
    """Return this rank's recorder, or None if gradients are not recorded; raise ``ValueError`` if they cannot be."""
    folder = os.environ.get(RECORD)
    if not folder:
        return None
    path = Path(folder)
    # After a restart by torchrun, samples of the same steps are replaced.
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        check_folder(path, RECORD)
    return Recorder(path)


#: Number of sources of each kind.
_sources: "collections.Counter[str]" = collections.Counter()


def has_sources(kind: str) -> bool:
    """Return whether this rank has had a source of a kind."""
    return _sources[kind] > 0


def source(kind: str) -> "Source | None":
    """Return a source of gradients, or None if gradients are not recorded. All ranks must create their sources in the
    same order."""
    own = recorder()
    if own is None:
        return None
    _sources[kind] += 1
    return Source(own, f"{kind}{_sources[kind] - 1}")


class Source:
    """Gradients of one module, of one optimizer, or of the script's own sums, which form one file for each sampled
    step and rank.

    Parameters
    ----------
    recorder : Recorder
    name : str
        Name of the source, which is the same on all ranks.
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name
        self._step = 0
        self._samples: dict[str, Sample] = {}
        self._left = self._sums = 0

    def add(self, step: int, gradients: Iterable[tuple[str, torch.Tensor | None]], *, parameters: int) -> None:
        """Copy elements of gradients, if the step is sampled. The elements of an earlier step are written.

        Parameters
        ----------
        step : int
            Number of the step, from 1.
        gradients : iterable of (str, Tensor or None)
            Name of each parameter, and its gradient. Only dense gradients of floating-point numbers are recorded.
        parameters : int
            Number of parameters of the source, which share the elements that may be recorded in a step.
        """
        begins = step != self._step
        if begins:
            self.write()
            self._step = step
        if not is_sampled(step):
            return
        budget = self._recorder.elements(dist.get_world_size())
        if begins:
            self._left = budget
        limit = min(MAX_RUNS * RUN, max(GROUP, budget // max(parameters, 1) // GROUP * GROUP))
        for name, gradient in gradients:
            if gradient is not None and gradient.layout == torch.strided and gradient.is_floating_point():
                self._add(printable(name)[:_MAX_NAME], gradient.detach(), limit)

    def add_sum(self, step: int, tensor: torch.Tensor) -> None:
        """Copy elements of a vector that the script sums itself, if the step is sampled. Vectors of fewer than 32
        elements, such as a loss, are not gradients."""
        if tensor.numel() >= GROUP:
            number = 0 if step != self._step else self._sums
            self._sums = number + 1
            self.add(step, [(f"sum {number} of shape {tuple(tensor.shape)}", tensor)], parameters=1)

    def _add(self, name: str, gradient: torch.Tensor, limit: int) -> None:
        runs = runs_of(name, self._step, gradient.numel(), limit)
        count = sum(count for _, count in runs)
        if not runs or name in self._samples or count > self._left:
            return
        self._left -= count
        flat = gradient.reshape(-1)
        values = torch.cat([flat[start:start + size] for start, size in runs]).to("cpu", torch.float32).numpy()
        self._samples[name] = Sample(source=self._name, parameter=name, shape=tuple(gradient.shape), step=self._step,
                                     rank=dist.get_rank(), ranks=dist.get_world_size(), runs=runs, values=values)

    def write(self, *, wait: bool = False) -> None:
        """Write the elements of the current step."""
        samples, self._samples = list(self._samples.values()), {}
        self._recorder.write(samples, wait=wait)
