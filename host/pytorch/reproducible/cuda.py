"""Compare reproducible sums on a GPU with sums on the CPU: ``python -m host.pytorch.reproducible.cuda``."""

import sys

import torch

from host.pytorch.reproducible.reducer import Reducer

__all__ = ["compare"]

ADDENDS, ELEMENTS = 4, 2 ** 20


def compare(device: torch.device) -> int:
    """Compute sums of all widths on a device and on the CPU, and return the number of elements that differ.

    Half of the elements are Gaussian. The other half have random bit patterns, with few infinities and NaNs.
    """
    generator, different = torch.Generator().manual_seed(0), 0
    for width in range(4, 33):
        patterns = torch.randint(-2 ** 31, 2 ** 31 - 1, (ADDENDS, ELEMENTS), generator=generator, dtype=torch.int32)
        similar = torch.randn(ADDENDS, ELEMENTS, generator=generator)
        addends = torch.where(torch.rand(ADDENDS, ELEMENTS, generator=generator) < 0.5, similar,
                              patterns.view(torch.float32))
        rare = torch.rand(ADDENDS, ELEMENTS, generator=generator) < 0.001
        addends = torch.where(addends.isfinite() | rare, addends, 1.0)
        sums = []
        for place in (torch.device("cpu"), device):
            total = torch.empty(ELEMENTS, device=place)
            Reducer(width=width).reduce([[row.to(place)] for row in addends], addends=ADDENDS, into=[total],
                                        divisor=3)
            sums.append(total.cpu().view(torch.int32))
        different += int((sums[0] != sums[1]).sum())
    return different


def main() -> int:
    if not torch.cuda.is_available():
        text = "PyTorch must find a GPU: run this where there is one, with a build of PyTorch for GPUs"
        print(f"error: {text}", file=sys.stderr)
        return 1
    different = compare(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {different} of {29 * ELEMENTS:,} sums "
          f"differ from those of the CPU")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
