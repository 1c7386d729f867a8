"""Requests backends that this PyTorch lacks, by name; the last error is the script's own."""

import sys

import torch.distributed as dist

for name in sys.argv[1:]:
    try:
        dist.init_process_group(name)
    except ValueError as error:
        print(f"{name}: {error}")
        last = error
raise last
