"""Script that requests backends which this PyTorch version lacks. The last error ends the script."""

import sys

import torch.distributed as dist

for name in sys.argv[1:]:
    try:
        dist.init_process_group(name)
    except ValueError as error:
        print(f"{name}: {error}")
        last = error
raise last
