"""Schemas: every report has a version and columns for all its fields, one writer, and readers that refuse others."""

import ast
import json
from pathlib import Path

import pytest

from host import report_fields
from host.columns import Column
from host.schema import RUN, Schema, read_report, repeat_command, write_report

ROOT = Path(__file__).parents[2]
SOURCES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "host").rglob("*.py"))}
SCHEMA = Schema("gradring.test", 2, "test", {"All": (Column("a"), Column("rows", columns=(Column("b"),)))})


def nested(columns):
    for column in columns:
        yield column
        yield from nested(column.columns)


@pytest.mark.parametrize("schema", report_fields.SCHEMAS, ids=lambda schema: schema.name)
def test_columns(schema):
    """Each field has a meaning and a name of words, none is twice in a row, and the document has all."""
    assert schema.version >= 1
    columns = [column for group in schema.groups.values() for column in group]
    assert len({column.name for column in columns}) == len(columns)
    for column in nested(columns):
        assert column.help, column.name
        names = [inner.name for inner in column.columns]
        assert len(set(names)) == len(names)
        assert column.name not in ("masters", "stand_in", "dealing", "laggards", "folded", "one_owner", "repeats")
        assert f"`{column.name}`" in report_fields.report_fields()


def test_all_schemas():
    """Every schema of the sources is in the document."""
    assert len({schema.name for schema in report_fields.SCHEMAS}) == len(report_fields.SCHEMAS)
    made = {node.args[0].value for tree in SOURCES.values() for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Schema")}
    assert made == {schema.name for schema in report_fields.SCHEMAS}


@pytest.mark.parametrize("content", [{"c": 1}, {"rows": [{"b": 1}, {"c": 2}]}])
def test_unknown_fields(content):
    with pytest.raises(AssertionError, match=r"^Field gradring\.test\.(rows\.)?c must be a column of the schema$"):
        SCHEMA.report(content)


def test_read(tmp_path):
    report = SCHEMA.report({"a": 1, "rows": [{"b": 2}]})
    path = write_report(report, tmp_path)
    assert (path.name, read_report(path, SCHEMA)) == ("report.json", report)


@pytest.mark.parametrize(("content", "message"), [
    ({"schema": {"name": "gradring.test", "version": 1}},
     "must have version 2 of gradring.test, not 1: run its command again, or read it with the release that wrote it"),
    ({"schema": "gradring.test", "version": 1}, "must have version 2 of gradring.test, not None: run "),
    ({"schema": {"name": "gradring.late", "version": 2}}, "must be a report gradring.test, not damaged or another "),
    ([], "must be a report gradring.test, not damaged or another "), ({}, "must be a report gradring.test, not ")])
def test_refused(tmp_path, content, message):
    """Older and other reports are refused in one line, which says what to do."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="must") as caught:
        read_report(path, SCHEMA)
    assert str(caught.value).startswith(f"{path} {message}")
    assert "\n" not in str(caught.value)


def test_command_that_repeats():
    """Reports of runs have their description, with which `gradring train` repeats them; other reports have none."""
    assert repeat_command(SCHEMA.report({}), Path("a")) is None
    report = Schema("gradring.run", 1, "run", {"Fields": RUN}).report({})
    assert (report["run"], report["weights_sha256"]) == (None, None)
    assert repeat_command(report, Path("a")) is None
    assert repeat_command({**report, "run": {}}, Path("a b")) == "gradring train 'a b/report.json'"
    runs = {schema.name for schema in report_fields.SCHEMAS if "run" in schema.columns}
    assert runs == {"gradring.training", "gradring.quorum", "gradring.streaming"}


def test_one_writer():
    """Only the module of schemas writes reports; it is given their names, and no other module has a header."""
    writers = {str(path.relative_to(ROOT)) for path, tree in SOURCES.items() for node in ast.walk(tree)
               if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "write_json"
               and any(isinstance(part, ast.Constant) and str(part.value).endswith("report.json")
                       for part in ast.walk(node))}
    assert writers == set()
    headers = [str(path.relative_to(ROOT)) for path, tree in SOURCES.items() for node in ast.walk(tree)
               if isinstance(node, ast.Dict) and {"schema", "program"} <= {
                   getattr(key, "value", None) for key in node.keys}]
    assert headers == ["host/schema.py"]


def test_no_markdown():
    """No program prints a raw Markdown table: rules of such are in the generators of documents only."""
    documented = {ast.get_docstring(tree, clean=False) for tree in SOURCES.values()}
    printed = {str(path.relative_to(ROOT)) for path, tree in SOURCES.items() for node in ast.walk(tree)
               if isinstance(node, ast.Constant) and isinstance(node.value, str) and "|---" in node.value
               and node.value not in documented}
    assert printed == {"host/documents.py"}
