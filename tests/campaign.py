"""Test campaigns: run parts of a campaign in parallel processes and store their results."""

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Key = TypeVar("Key")

#: Command-line option for the number of processes.
Jobs = Annotated[int, typer.Option(min=1, show_default=False, help="Number of processes. [default: one per core]")]
CORES = os.cpu_count() or 1


def sources(*folders: str) -> str:
    """Digest of all Python sources in the given folders of the repository."""
    root, digest = Path(__file__).resolve().parents[1], hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def played(jobs: int, play: Callable[..., Any], parts: Mapping[Key, tuple[Any, ...]],
           **options: Any) -> Iterator[tuple[Key, Any]]:
    """Run the parts of a campaign in several processes, in order; yield each key and result upon completion."""
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(play, *part, **options): key for key, part in parts.items()}
        for done in concurrent.futures.as_completed(waiting):
            yield waiting[done], done.result()


def kept(jobs: int, play: Callable[..., dict[str, Any]], parts: Mapping[Path, tuple[Any, ...]],
         tell: Callable[[dict[str, Any]], str], *, every: int = 1, **options: Any) -> list[dict[str, Any]]:
    """Run all parts without a stored result; return all results, and print a line after every ``every`` results."""
    for path in parts:
        path.parent.mkdir(parents=True, exist_ok=True)
    missing = {path: part for path, part in parts.items() if not path.exists()}
    results = [json.loads(path.read_text()) for path in parts if path not in missing]
    if results:
        print(f"{len(results)} of {len(parts)} parts have been played before", flush=True)
    for path, result in played(jobs, play, missing, **options):
        results.append(result)
        path.with_suffix(".part").write_text(json.dumps(result))
        path.with_suffix(".part").rename(path)
        if len(results) % every == 0:
            print(f"{len(results)} of {len(parts)} parts: {tell(result)}", flush=True)
    return results


def end(path: Path, rows: list[dict[str, Any]], wrong: list[dict[str, Any]], began: float, outcome: str) -> None:
    """Write the campaign summary and print the outcome; exit with an error if any result is wrong."""
    summary = {"rows": rows, "wall_seconds": time.monotonic() - began, "wrong": wrong}
    path.write_text(json.dumps(summary, indent=2))
    print(f"{outcome}, {summary['wall_seconds']:.0f} s")
    if wrong:
        sys.exit(1)
