"""Tables of docs/compression/errors.md and lines of docs/reproducible.md on recorded gradients, in Markdown.

``python -m host.labs.formats.page`` prints them.
"""

from collections.abc import Iterator

import numpy as np

from host.columns import Table
from host.gradients.files import load
from host.labs.formats.lab import RECORDED, tables
from host.labs.formats.measures import SUMMED, Gradients
from sim.bench import reproducible_errors

__all__ = ["main", "page", "reproducible_lines"]


def _markdown(table: Table) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(table.headings)} |"
    yield "|---" + "|---:" * (len(table.headings) - 1) + "|"
    for name, *figures in table.cells:
        yield f"| {' | '.join([f'`{name}`', *figures])} |"


def page() -> Iterator[str]:
    """Yield the lines of the tables, and sentences on each recording."""
    for name, path in RECORDED.items():
        for part in tables(name, Gradients(load(path)), list(SUMMED)):
            if isinstance(part, Table):
                yield from ["", f"{part.title}:", "", *_markdown(part)]
            else:
                yield from ["", f"{part}."]


def reproducible_lines() -> Iterator[str]:
    """Yield lines on recorded gradients for the table of errors of reproducible sums, with the median of all
    gradients in each recording."""
    for name, path in RECORDED.items():
        gradients = Gradients(load(path))
        rows, starts = gradients.rows()
        exact = rows.astype(np.float64).sum(axis=0)
        power = np.add.reduceat(exact ** 2, starts)
        errors = {format: float(np.median(np.add.reduceat((total - exact) ** 2, starts) / power))
                  for format, total in reproducible_errors.sums(rows).items()}
        yield reproducible_errors.line(f"recorded, {name}", gradients.ranks, errors)


def main() -> None:
    """Print all lines."""
    print("\n".join([*page(), "", *reproducible_lines()]))


if __name__ == "__main__":
    main()
