"""``make known-answers``: recompute the known answers and compare them with the stored ones."""

import concurrent.futures
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.known_answers import circuits, compute, runs


def _task(kind: str, name: str) -> tuple[Any, float]:
    """Return an answer, or the text of an error, and the time that it took in seconds."""
    began = time.monotonic()
    try:
        if kind == "runs":
            with tempfile.TemporaryDirectory() as folder:
                answer = compute.run(name, Path(folder))
        elif kind == "boards":
            answer = compute.board(name)
        else:
            answer = compute.configuration(json.loads(name))
    except Exception as error:  # other answers are still computed
        answer = f"{type(error).__name__}: {error}"
    return answer, time.monotonic() - began


def _chosen(names: list[str], answers: dict[str, Any], *, record: bool) -> list[tuple[str, str]]:
    """Select the answers to be computed; return them as (kind, name) pairs."""
    drawn = circuits.draw(circuits.COUNT) if record else map(json.loads, answers["configurations"])
    every = [*(("runs", name) for name in runs.RUNS), *(("boards", name) for name in circuits.board_nodes()),
             *(("configurations", json.dumps(options)) for options in drawn)]
    for name in names:
        if not any(name in pair for pair in every):
            raise typer.BadParameter(f"Name must be runs, boards, configurations or that of one: "
                                     f"{', '.join(name for kind, name in every if kind != 'configurations')}, "
                                     f"not {name!r}")
    return [pair for pair in every if not names or pair[0] in names or pair[1] in names]


def main(
    names: Annotated[list[str] | None, typer.Argument(
        help="Runs or boards, or all of a kind: runs, boards, configurations. [default: all]",
        show_default=False)] = None,
    record: Annotated[bool, typer.Option("--record", help="Store the answers instead of comparing them.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of answers computed concurrently.")] = 2,
) -> None:
    """Compute known answers, and compare them with the stored ones; this takes about half an hour in total."""
    answers = compute.kept()
    chosen = _chosen(names or [], answers, record=record)
    wrong = 0
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        tasks = {pool.submit(_task, *pair): pair for pair in chosen}
        for task in concurrent.futures.as_completed(tasks):
            kind, name = tasks[task]
            answer, seconds = task.result()
            lines = list(compute.differences(answers[kind].get(name), answer))
            failed = isinstance(answer, str)
            wrong += failed or bool(lines)
            print(f"{kind} {name} ({seconds:.0f} s): " + (answer if failed else "as kept" if not lines else "recorded"
                                                          if record else "OTHER THAN KEPT"), flush=True)
            if record and not failed:
                answers[kind][name] = answer
                compute.PATH.write_text(json.dumps(answers, indent=1) + "\n")
            elif not failed:
                print("".join(f"  {line}\n" for line in lines[:10]), end="", flush=True)
    print(f"{len(chosen)} answers, {wrong} {'failed or changed' if record else 'other than kept'}")
    if wrong and not record:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
