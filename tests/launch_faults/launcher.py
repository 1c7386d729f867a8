"""Launch ranks without PyTorch, with a stub in place of the ring: ``launcher.py RANKS SLOW TIMEOUT SCRIPT …``.

Everything else is the same as in ``gradring launch``: processes, sockets, timeouts, and the final error.
"""

import sys

from host.pytorch import launch as module
from host.pytorch.jobs import Options
from host.pytorch.server import Patience
from sim.verilated.processes import ended_by_signals


class Sums:
    """Stub of jobs that computes sums without a ring."""

    cycles = 0

    def __init__(self, options, stack, announce, say):
        pass

    def answer(self, requests):
        return sum(request.values for request in requests)

    def spend(self, seconds):
        pass


def main(ranks, slow, timeout, *script):
    module.MODULE, module.Jobs = "tests.launch_faults.rank", Sums
    try:
        with ended_by_signals():
            module.launch(script, Options(nodes=int(ranks)), say=lambda text: print(text, flush=True),
                          patience=Patience(slow=float(slow), timeout=float(timeout)))
    except module.LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
