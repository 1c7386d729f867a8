"""Tables on all pages: every row belongs to a table with a heading and has one cell per column."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [name for name in subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True,
                                         check=True).stdout.splitlines() if (ROOT / name).is_file()]
_RULE = re.compile(r"\|( *:?-+:? *\|)+")


def cells(row):
    """Number of cells in a row; a bar in code or after a backslash does not separate cells."""
    return len(re.sub(r"`[^`]*`|\\.", "", row).strip().strip("|").split("|"))


def faults(text):
    """Line numbers of rows outside tables, and of rows with more or fewer cells than their heading."""
    rows, columns, fenced, before = [], None, False, ""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        fenced ^= stripped.startswith("```")
        if fenced or not stripped.startswith("|") or line.startswith("    "):
            columns = None
        elif columns is None:
            following = lines[number].strip() if number < len(lines) else ""
            columns = cells(stripped)
            if not _RULE.fullmatch(following) or before:
                rows.append((number, "begins no table"))
        elif cells(stripped) != columns:
            rows.append((number, f"has {cells(stripped)} of {columns} cells"))
        before = "" if stripped.startswith("|") else stripped
    return rows


def test_rows_outside_tables_are_found():
    table = "| a | b |\n|---|---:|\n| 1 | `x|y` |\n"
    assert faults(f"Text.\n\n{table}\nText.\n") == []
    assert faults(f"{table}\n| 3 | 4 |\n") == [(5, "begins no table")]
    assert faults(f"{table}| 3 |\n") == [(4, "has 1 of 2 cells")]
    assert faults(f"Text.\n{table}") == [(2, "begins no table")]
    assert faults(f"```\n| 3 | 4 |\n```\n\n{table}") == []


@pytest.mark.parametrize("name", PAGES)
def test_page(name):
    assert faults((ROOT / name).read_text()) == []
