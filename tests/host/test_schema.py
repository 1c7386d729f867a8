"""Schemas of reports: a column per field, a single writer, and readers that check versions and fields."""

import ast
import functools
import importlib
import json
import re
from pathlib import Path

import pytest

from host.columns import Column, columns_of
from host.schema import RUN, Schema, read_report, repeat_command

ROOT = Path(__file__).parents[2]
TEXTS = {path: path.read_text() for path in sorted((ROOT / "host").rglob("*.py"))}
SCHEMA = Schema("gradring.test", 2, columns_of("a", Column("rows", columns=columns_of("b"))))


MODULES = [path for path, text in TEXTS.items() if re.search(r"\bSchema\(", text)]
SCHEMAS = [importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)).SCHEMA for path in MODULES]
#: Pattern for lines of docs/report_fields.md that describe one or several fields.
NAMES = re.compile(r"^(  )?- (`\w+`(?:, `\w+`)*):", re.MULTILINE)


@functools.cache
def sources():
    """Return the syntax trees of all host modules by path."""
    return {path: ast.parse(text) for path, text in TEXTS.items()}


def documented(name):
    """Return the documented version and fields of a schema. Fields are keyed by their parent field (None at the top
    level)."""
    text = re.sub(r"\n +(?=[^ -])", " ", (ROOT / "docs" / "report_fields.md").read_text())
    section, = (part for part in text.split("\n## ") if f"Schema `{name}`, version " in part)
    by_parent, parent = {None: set()}, None
    for inner, names in NAMES.findall(section):
        fields = set(re.findall(r"\w+", names))
        if not inner:
            by_parent[None] |= fields
            parent, = fields if len(fields) == 1 else (None,)
        else:
            by_parent.setdefault(parent, set()).update(fields)
    version, = re.findall(r"version (\d+)\.", section)
    return int(version), by_parent


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.name)
def test_columns(schema):
    """The page lists exactly the fields of each schema, and all names of fields are unique and current."""
    version, by_parent = documented(schema.name)
    assert version == schema.version
    assert by_parent == {None: {column.name for column in schema.own}, **{
        column.name: {inner.name for inner in column.columns} for column in schema.own if column.columns}}
    for columns in (schema.own, *(column.columns for column in schema.own)):
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        assert not {"masters", "stand_in", "dealing", "laggards", "folded", "one_owner", "repeats"} & set(names)


def test_all_schemas():
    """Schemas have unique names, and the page describes exactly these schemas."""
    names = re.findall(r"^Schema `([\w.]+)`", (ROOT / "docs" / "report_fields.md").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(schema.name for schema in SCHEMAS)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("content", "message"), [
    ({"schema": {"name": "gradring.test", "version": 1}},
     "must have version 2 of gradring.test, not 1: run its command again, or read it with the release that wrote it"),
    ({"schema": "gradring.test", "version": 1}, "must have version 2 of gradring.test, not None: run "),
    ({"schema": {"name": "gradring.late", "version": 2}}, "must be a report gradring.test, not damaged or another "),
    ([], "must be a report gradring.test, not damaged or another "), ({}, "must be a report gradring.test, not ")])
def test_refused(tmp_path, content, message):
    """Reports of older versions, or of other programs, are rejected with a one-line message that includes advice."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="must") as caught:
        read_report(path, SCHEMA)
    assert str(caught.value).startswith(f"{path} {message}")
    assert "\n" not in str(caught.value)


def test_command_that_repeats():
    """Only reports of runs contain a description with which `gradring train` can repeat the run."""
    assert repeat_command(SCHEMA.report({}), Path("a")) is None
    report = Schema("gradring.run", 1, RUN).report({})
    assert (report["run"], report["weights_sha256"], report["levels"]) == (None, None, None)
    assert repeat_command(report, Path("a")) is None
    assert repeat_command({**report, "run": {}}, Path("a b")) == "gradring train 'a b/report.json'"
    runs = {schema.name for schema in SCHEMAS if "run" in schema.columns}
    assert runs == {"gradring.training", "gradring.quorum", "gradring.streaming"}


def calls(tree, *names):
    """Return the calls of functions or methods that have one of the given names."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)
            and (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) in names]


def test_one_writer():
    """Only one module writes reports. All other JSON files are either sealed results or no reports."""
    names = ("write_json", "dump", "write_text", "write_bytes", "open")
    writers = {str(path.relative_to(ROOT)) for path, tree in sources().items() for call in calls(tree, *names)
               if any((isinstance(part, ast.Constant) and str(part.value).endswith("report.json"))
                      or getattr(part, "id", None) == "REPORT" for part in ast.walk(call))}
    assert writers == set()
    modules = {str(path.relative_to(ROOT)) for path, tree in sources().items() for call in calls(tree, "write_json")
               if not calls(call, "sealed")}
    traces, ledger, edits, times = ("host/features/programs/timeline.py", "host/migration/migrate.py",
                                    "host/labs/streaming/lab.py", "host/stage_times.py")
    assert modules == {"host/schema.py", traces, ledger, edits, times}
    headers = [str(path.relative_to(ROOT)) for path, tree in sources().items() for node in ast.walk(tree)
               if isinstance(node, ast.Dict) and {"schema", "program"} <= {
                   getattr(key, "value", None) for key in node.keys}]
    assert headers == ["host/schema.py"]


def test_no_markdown():
    """Programs print no raw Markdown tables; only generators of documents contain rules of Markdown tables."""
    documented = {ast.get_docstring(tree, clean=False) for tree in sources().values()}
    printed = {str(path.relative_to(ROOT)) for path, tree in sources().items() for node in ast.walk(tree)
               if isinstance(node, ast.Constant) and isinstance(node.value, str) and "|---" in node.value
               and node.value not in documented}
    assert printed == {"host/documents.py", "host/labs/formats/page.py"}
