"""Mutation testing of hdl/: ``make mutate``, see docs/testing.md."""

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tests.mutation import equivalents, report
from tests.mutation.mutants import Mutant, find, sample
from tests.mutation.report import Row
from tests.mutation.results import Store, dependencies, digest
from tests.mutation.targets import TARGETS, Target
from tests.mutation.workers import Worker

TREE = Path(__file__).resolve().parents[2]
#: Maximum fraction of the chosen mutants that may be listed as equivalent.
MAX_EQUIVALENT = 0.1


class MutationError(Exception):
    """Error that ends the run, with the reason as its message."""


class Run:
    """Run of mutants and their tests on copies of the tree.

    Each test process of a mutant may use ``budget`` seconds of CPU time and ten times that in wall-clock time.
    """

    def __init__(self, budget: int, tree: Path = TREE) -> None:
        self._budget = budget
        self._store = Store(tree / "build/mutate/results")
        self._begun = time.monotonic()
        self._print = threading.Lock()

    def _request(self, target: Target, expected: dict[str, str]) -> dict[str, Any]:
        return {"target": target.file, "expected": expected, "cpu": self._budget, "wall": 10 * self._budget}

    def _key(self, tree: Path, target: Target, source: str, *more: str) -> str:
        files = [file for file in dependencies(tree, [target.file, *target.tests]) if file != tree / target.file]
        return digest(tree, files, target.file, source, repr((target.tests, target.first, target.rest)), *more)

    def baseline(self, worker: Worker, target: Target) -> dict[str, str]:
        """Run the tests of an unmodified file, which must pass; return the digests of its gateware.

        Builds of the unmodified tree stay in the cache, and mutants that do not affect them use them again.
        """
        # Read the file in the copy of the tree, because the working tree may change while mutants run.
        source = (worker.folder / target.file).read_text()
        key = self._key(worker.folder, target, source, "baseline", str(worker.folder))
        known = self._store.get(key)
        if known is None:
            known = worker.run(self._request(target, {}), file=target.file, source=source, keep=True)
            if known["status"] != "survived":
                raise MutationError(f"The tests of {target.file} must pass as it is, not end with {known['status']} "
                                    f"({known.get('test')}):\n{known['log']}")
            self._store.put(key, known)
            self.tell(f"{target.file}: its {known['passed']} tests pass in {known['cpu']:.0f} CPU seconds")
        result: dict[str, str] = known["gateware"]
        return result

    def mutant(self, worker: Worker, target: Target, mutant: Mutant, expected: dict[str, str]) -> Row:
        """Run one mutant, or return the stored result of an earlier run."""
        source = mutant.apply((worker.folder / target.file).read_text())
        key = self._key(worker.folder, target, source)
        result = self._store.get(key)
        if result is None or (result["status"] == "timeout" and result["budget"] < self._budget):
            result = worker.run(self._request(target, expected), file=target.file, source=source)
            self._store.put(key, {**result, "budget": self._budget})
        return _row(target, mutant, result["status"], result.get("test", ""), result.get("cpu", 0.0))

    def tell(self, text: str) -> None:
        """Print a line of progress, and flush it even if the output is a pipe."""
        with self._print:
            print(f"[{time.monotonic() - self._begun:6.0f} s] {text}", flush=True)


def _row(target: Target, mutant: Mutant, status: str, test: str, cpu: float) -> Row:
    return Row(target.file, mutant.line, mutant.kind, mutant.before, mutant.after, mutant.occurrence, status, test,
               cpu)


def chosen_targets(files: str) -> list[Target]:
    """Return the targets in comma-separated files and folders, or all targets if ``files`` is empty."""
    names = [name.strip().rstrip("/") for name in files.split(",") if name.strip()]
    for name in names:
        if not any(_is_under(file, name) for file in TARGETS):
            raise MutationError(f"Files must be some of {', '.join(TARGETS)}, or folders of them, not {name!r}")
    return [target for file, target in TARGETS.items() if not names or any(_is_under(file, name) for name in names)]


def _is_under(file: str, name: str) -> bool:
    return file == name or file.startswith(f"{name}/")


def run_all(run: Run, targets: list[Target], picked: dict[str, list[Mutant]], workers: int) -> Iterator[Row]:
    """Run the chosen mutants of each file on several workers, and yield results as they arrive."""
    done: queue.Queue[Row | BaseException | None] = queue.Queue()
    jobs: queue.Queue[tuple[Target, Mutant]] = queue.Queue()
    for target in targets:
        for mutant in picked[target.file]:
            jobs.put((target, mutant))

    def work() -> None:
        expected: dict[str, dict[str, str]] = {}
        try:
            with Worker(TREE, TREE / "build/mutate") as worker:
                while True:
                    try:
                        target, mutant = jobs.get_nowait()
                    except queue.Empty:
                        break
                    if target.file not in expected:
                        expected[target.file] = run.baseline(worker, target)
                    done.put(run.mutant(worker, target, mutant, expected[target.file]))
            done.put(None)
        except Exception as error:  # raised again by the thread that reads `done`
            done.put(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    ended = 0
    while ended < workers:
        row = done.get()
        if isinstance(row, BaseException):
            raise row
        if row is None:
            ended += 1
        else:
            yield row


def main(
    files: Annotated[str, typer.Option(help="Comma-separated files or folders in hdl/.")] = "",
    mutants: Annotated[int, typer.Option(min=1, help="Mutants of each file; a tenth if it needs a ring.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed for the choice of mutants.")] = 0,
    budget: Annotated[int, typer.Option(min=1, help="Limit on the CPU seconds of a process.")] = 120,
    workers: Annotated[int, typer.Option(min=1, help="Number of copies of the tree that run concurrently.")] = 2,
) -> None:
    """Apply one change at a time to hdl/, and check that a test of the changed file fails."""
    try:
        targets = chosen_targets(files)
        every = {target.file: find((TREE / target.file).read_text()) for target in targets}
        listed = equivalents.match(equivalents.load(), every)
        picked = {file: sample(pool, max(1, mutants // TARGETS[file].cost), seed) for file, pool in every.items()}
        rows = [_row(target, mutant, "equivalent", listed[target.file, mutant].reason, 0.0)
                for target in targets for mutant in picked[target.file] if (target.file, mutant) in listed]
        left = {file: [each for each in pool if (file, each) not in listed] for file, pool in picked.items()}
        run, total = Run(budget), sum(map(len, left.values()))
        run.tell(f"{total} mutants of {len(targets)} files, {len(rows)} more are listed as equivalent")
        for number, row in enumerate(run_all(run, targets, left, workers), start=1):
            rows.append(row)
            run.tell(f"{number}/{total} {row.status:9} {row.file}:{row.line} {row.kind}"
                     + (f": {row.after}" if row.status == "survived" else ""))
    except (MutationError, equivalents.EquivalentError) as error:
        raise SystemExit(str(error)) from None
    rows.sort(key=lambda row: (row.file, row.line, row.after))
    report.write(rows, {"files": files, "mutants": mutants, "seed": seed, "budget": budget},
                 TREE / "build/mutate/mutate.json")
    report.show(rows, Console(width=None if Console().is_terminal else 118))
    many = sum(row.status == "equivalent" for row in rows)
    if many > MAX_EQUIVALENT * len(rows):
        raise SystemExit(f"At most {MAX_EQUIVALENT:.0%} of the mutants may be listed as equivalent, not {many} of "
                         f"{len(rows)}")


if __name__ == "__main__":
    typer.run(main)
