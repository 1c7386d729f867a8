"""Script that requests backends missing from this PyTorch version; the last error ends the script."""

import sys

import torch.distributed as dist

for name in sys.argv[1:]:
    try:
        dist.init_process_group(name)
    except ValueError as error:
        print(f"{name}: {error}")
        last = error
raise last
