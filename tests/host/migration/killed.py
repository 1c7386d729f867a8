# amaranth: UnusedElaboratable=no
"""A migration in a process of its own, which kills itself.

    python -m tests.host.migration.killed folder step

has steps of a run done, moves it and kills itself before the step of that number, or goes on, with ``settle``, where
such a process was killed, and prints a digest of the final bits.
"""

import hashlib
import os
import pickle
import signal
import sys
from pathlib import Path

from host.migration.ledger import Ledger
from host.migration.migrate import Step, migrate, settle
from tests.host.migration.sites import advance, fabric_of, ledger_of, result, site_of


def main(folder, step):
    sites = [site_of(name, folder, fabric_of("mx9", nodes=2, latency=latency))
             for name, latency in (("here", 16), ("there", 29))]
    here, there = sites
    if step == "settle":
        ledger = Ledger(folder / "ledger.json")
        owner = settle(ledger, sites)
        digest = hashlib.sha256(pickle.dumps(result(owner)[0])).hexdigest()
        print(ledger.read().owner, [site.name for site in sites if site.running], digest)
        return
    ledger = ledger_of(folder, "here")
    here.begin()
    advance(here, 5)

    def on_step(found):
        if found is list(Step)[int(step)]:
            os.kill(os.getpid(), signal.SIGKILL)

    migrate(here, there, ledger, on_step=on_step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
