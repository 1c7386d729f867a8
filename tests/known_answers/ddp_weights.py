"""Run examples/pytorch_ddp.py; rank 0 writes a digest of the trained weights to the file in WEIGHTS."""

import hashlib
import os
import runpy
from pathlib import Path

import torch
import torch.distributed as dist

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pytorch_ddp.py"


class _RecordedSGD(torch.optim.SGD):
    """Optimizer class for the example. ``last`` is the optimizer that was created last."""

    last: torch.optim.SGD

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        _RecordedSGD.last = self


def _destroy(destroy=dist.destroy_process_group):
    if dist.get_rank() == 0:
        parameters = [parameter for group in _RecordedSGD.last.param_groups for parameter in group["params"]]
        bits = b"".join(parameter.detach().numpy().tobytes() for parameter in parameters)
        Path(os.environ["WEIGHTS"]).write_text(hashlib.sha256(bits).hexdigest())
    destroy()


if __name__ == "__main__":
    torch.optim.SGD = _RecordedSGD
    dist.destroy_process_group = _destroy
    runpy.run_path(str(_EXAMPLE), run_name="__main__")
