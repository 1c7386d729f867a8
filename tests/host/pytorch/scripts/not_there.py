"""Script that requests backends missing from this build of PyTorch; the last error ends it."""

import sys

import torch.distributed as dist

for name in sys.argv[1:]:
    try:
        dist.init_process_group(name)
    except ValueError as error:
        print(f"{name}: {error}")
        last = error
raise last
