# amaranth: UnusedElaboratable=no
"""Test job migration between processes while one process is killed or one message is lost.

    python -m tests.host.migration.failures --folder build/migrate-failures

runs a source, a target, a ledger and a tenant as separate processes. In each case the tenant moves a job, and either
one party is killed by SIGKILL before or during a step, or one message is lost. Dead parties then restart with only
their data on disk, and another tenant settles who owns the job. After that, only the site named in the ledger may
run, and the job must end bit-identical to a job that was never moved. ``--few`` runs each step once and each party
twice.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from host.migration.migrate import Ledger, MigrationError, Step, migrate, settle
from host.migration.parties import RemoteLedger, RemoteSite, serve
from host.migration.site import Site
from tests.host.migration.sites import KEYS, MOMENTUM, fabric_of, few, ledger_of, result, with_optimizer
from tests.host.rings import CONFIGS, library

KEY = b"parties of one machine"
PARTIES = ("source", "target", "ledger", "tenant")
CONFIG, MOVED = with_optimizer(MOMENTUM, max_steps=4), 2

#: Time limit for a tenant's process, in seconds.
PATIENCE = 240


class Job(Site):
    """Migration site with more calls, which run steps of its job and finish it."""

    calls = Site.calls | {"begin", "advance", "digest"}

    def advance(self, steps):
        for _ in range(steps):
            assert self.running
            self.run.advance()

    def digest(self):
        return hashlib.sha256(pickle.dumps(result(self))).hexdigest()


@dataclasses.dataclass(frozen=True)
class Case:
    """One failure: a party is killed before a step or some seconds into it, or the message with this number is lost.
    A case may also be without a failure."""

    victim: str = ""
    step: Step | None = None
    delay: float = 0.0
    message: int | None = None

    def __str__(self):
        if self.step is not None:
            when = f"{1000 * self.delay:.0f} ms into" if self.delay else "before"
            return f"{self.victim} killed {when} {self.step.value}"
        return "nothing lost" if self.message is None else f"message {self.message} lost"


SEED = 3
_DELAYS = random.Random(SEED)
KILLS = [Case(victim, step, delay) for step in Step for victim in PARTIES
         for delay in (0.0, _DELAYS.uniform(0.001, 0.05))]
#: A few cases that together include each step once and each party twice.
FEW = [Case(PARTIES[(place + place // 4) % 4], step) for place, step in enumerate(Step)]


def site(name, folder):
    from host.training.workloads import Classifier

    (folder / name).mkdir(parents=True, exist_ok=True)
    return Job(name, folder / name, fabric=fabric_of("wide", nodes=2, latency={"source": 16, "target": 29}[name]),
               workload=lambda: Classifier(few(), CONFIG.hidden), config=CONFIG, keys=KEYS)


def address(folder, name):
    return folder / f"{name}.socket"


def forked(act):
    """Fork a child process that calls the function and exits; return its process ID."""
    sys.stdout.flush()
    number = os.fork()
    if number == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return number


def started(name, folder):
    """Start the process of a party, and return its process ID once it is listening."""
    where = address(folder, name)
    where.unlink(missing_ok=True)
    number = forked(lambda: serve(Ledger(folder / "ledger.json") if name == "ledger" else site(name, folder), where,
                                  key=KEY))
    until = time.monotonic() + 30
    while not where.exists():
        assert time.monotonic() < until, f"{name} does not listen"
        time.sleep(0.005)
    return number


def ended(number):
    """Wait until a process ends; kill it after the time limit. Return whether it ended by itself."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if os.waitpid(number, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return False


def proxies(folder, **options):
    return (*(RemoteSite(name, address(folder, name), key=KEY, **options) for name in ("source", "target")),
            RemoteLedger("ledger", address(folder, "ledger"), key=KEY, **options))


class Messages:
    """Decides for each message, in order, whether to lose it. At most one message is lost."""

    def __init__(self, lost):
        self.lost, self.seen = lost, []

    def __call__(self, party, call, answer):
        self.seen.append(f"{'answer to' if answer else 'request of'} {call}, {party}")
        return len(self.seen) - 1 == self.lost


def move(folder, case, numbers):
    """Run the tenant's process, which begins a job and moves it while the failure of ``case`` happens."""
    source, _, _ = proxies(folder)
    source.call("begin")
    source.call("advance", MOVED)
    source.close()

    killers = []

    def on_step(current):
        if current is case.step:
            kill = functools.partial(os.kill, os.getpid() if case.victim == "tenant" else numbers[case.victim],
                                     signal.SIGKILL)
            if case.delay:
                killers.append(threading.Timer(case.delay, kill))
                killers[0].start()
            else:
                kill()

    messages = Messages(case.message)
    here, there, ledger = proxies(folder, lost=messages)
    try:
        migrate(here, there, ledger, on_step=on_step)
        outcome = "moved"
    except MigrationError as error:
        outcome = str(error)
    for killer in killers:
        killer.join()
    (folder / "tenant.json").write_text(json.dumps({"outcome": outcome, "messages": messages.seen}))


def finish(folder):
    """Settle who owns the job, in a new process, and make the owner finish it."""
    sites = proxies(folder)[:2]
    ledger = proxies(folder)[2]
    before = [party.name for party in sites if party.running]
    owner = settle(ledger, sites)
    running = [party.name for party in sites if party.running]
    (folder / "end.json").write_text(json.dumps({
        "before": before, "running": running, "owner": ledger.read().owner, "digest": owner.call("digest"),
        "left": [party.name for party in sites
                 if party is not owner and (folder / party.name / "checkpoint.tar").exists()]}))


def play(folder, case):
    """Run a case; return the tenant's report and the final state."""
    shutil.rmtree(folder, ignore_errors=True)
    ledger_of(folder, "source")
    numbers = {name: started(name, folder) for name in PARTIES[:3]}
    try:
        assert ended(forked(lambda: move(folder, case, numbers))), f"{case}: tenant has not ended"
        if case.victim in numbers:
            os.waitpid(numbers.pop(case.victim), 0)
            numbers[case.victim] = started(case.victim, folder)
        assert ended(forked(lambda: finish(folder))), f"{case}: tenant has not settled"
        result = json.loads((folder / "end.json").read_text())
        with contextlib.suppress(FileNotFoundError):
            result |= json.loads((folder / "tenant.json").read_text())
        return result
    finally:
        for number in numbers.values():
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


def whole(folder):
    """Digest of the results of a job that is never moved."""
    job = site("source", folder)
    job.begin()
    try:
        return job.digest()
    finally:
        job.close()


def check(case, result, expected):
    """Raise AssertionError unless only the site that the ledger names runs, with bit-identical results."""
    assert result["digest"] == expected, f"{case}: {result}"
    assert result["running"] == [result["owner"]], f"{case}: {result}"
    assert set(result["before"]) <= {result["owner"]}, f"{case}: {result}"
    assert not result["left"], f"{case}: {result}"
    if case.step is not None and not case.delay:
        # From LOAD on, no party needs the source, so it may be killed without any effect. A commit does not need the
        # target either, because the checkpoint is stored on the target's disk.
        last = {"source": Step.READ, "target": Step.READY}.get(case.victim, Step.COMMIT)
        steps = list(Step)
        assert result["owner"] == ("target" if steps.index(case.step) > steps.index(last) else "source"), result


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("build/migrate-failures"), help="folder for all moves")
    parser.add_argument("--few", action="store_true", help="lose only four of the messages")
    options = parser.parse_args()
    library(CONFIGS["wide"])  # built once, before processes start
    folder = options.folder.absolute()
    numbered = forked(lambda: (folder / "whole").parent.mkdir(parents=True, exist_ok=True) or
                      (folder / "whole.txt").write_text(whole(folder / "whole")))
    assert ended(numbered)
    expected = (folder / "whole.txt").read_text()
    good = play(folder / "case", Case())
    check(Case(), good, expected)
    assert (good["outcome"], good["owner"]) == ("moved", "target")
    messages = good["messages"]
    lost = [Case(message=number) for number in range(len(messages))]
    if options.few:
        lost = [loss for loss in lost if messages[loss.message] in (
            "answer to capture, source", "request of commit, ledger", "answer to commit, ledger",
            "answer to start, target")]
    owners = {"source": 0, "target": 0}
    print(f"times within steps: seed {SEED}")
    for case in itertools.chain(FEW if options.few else KILLS, lost):
        result = play(folder / "case", case)
        check(case, result, expected)
        owners[result["owner"]] += 1
        what = str(case) if case.message is None else f"{messages[case.message]}: lost"
        print(f"{what}: {result['owner']} runs, same bits", flush=True)
    print(f"{sum(owners.values())} cases: {owners['source']} end on the source, {owners['target']} on the target, "
          f"all with the bits of a run that was not moved")


if __name__ == "__main__":
    main()
