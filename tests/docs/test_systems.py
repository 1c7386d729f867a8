"""Test the systems page: it lists each system once, and all commands, pages and tests that it names exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests import test_readme
from tests.host import test_documents

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/systems.md"
TEXT = PAGE.read_text()
SYSTEMS = [f"{group}{number}" for group, count in {"A": 5, "B": 7, "C": 7, "D": 3}.items()
           for number in range(1, count + 1)]
LABELS = ["Published as", "Command", "Prints", "Pages", "Tests", "Limits"]
#: Title and text of each system's section, keyed by ID.
SECTIONS = {name: (title, text) for name, title, text in
            re.findall(r"^### (\w+): (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)}


def items(name):
    """Return the items of a system's section, keyed by label, each as one line."""
    pairs = re.findall(r"^- \*\*(.+?)\*\*: (.*?)(?=^- |\Z)", SECTIONS[name][1], re.MULTILINE | re.DOTALL)
    return {label: " ".join(text.split()) for label, text in pairs}


def codes(text):
    return re.findall(r"`([^`]+)`", text)


def introduction(page):
    """Return a page's text before its second heading."""
    return re.split(r"^## ", page.read_text(), maxsplit=1, flags=re.MULTILINE)[0]


def test_each_system_is_there_once():
    assert len(SYSTEMS) == 22
    assert re.findall(r"^### (\w+):", TEXT, re.MULTILINE) == SYSTEMS
    rows = re.findall(r"^\| \[(\w+)\]\(#([\w-]+)\) \|.*\| `(.+)` \|$", TEXT, re.MULTILINE)
    assert [name for name, _, _ in rows] == SYSTEMS
    for name, anchor, command in rows:
        assert test_documents.anchors(f"# {name}: {SECTIONS[name][0]}") == {anchor}
        assert command == codes(items(name)["Command"])[0]


@pytest.mark.parametrize("name", SYSTEMS)
def test_items(name):
    assert list(items(name)) == LABELS
    assert re.search(r"US ?[\d,]+", items(name)["Published as"])
    tests = codes(items(name)["Tests"])
    assert tests
    assert [path for path in tests if not (path.startswith("tests/") and (ROOT / path).is_file())] == []


@pytest.mark.parametrize("name", SYSTEMS)
def test_pages_name_the_system(name):
    """The introduction of each page that belongs to a system links to the systems page."""
    pages = [PAGE.parent / target.partition("#")[0] for target in test_documents.LINK.findall(items(name)["Pages"])]
    assert pages
    for page in pages:
        links = re.findall(rf"\[{name}\]\(([\w./]+)\)", introduction(page))
        assert [(page.parent / link).resolve() for link in links] == [PAGE], page


@pytest.mark.parametrize("name", SYSTEMS)
def test_commands_are_known(name):
    commands = [command for command in codes(items(name)["Command"]) if " " in command]
    assert commands[0].startswith("make ")
    for command in commands:
        if command.startswith("make "):
            test_readme.check_make(command)
        elif command.startswith("gradring "):
            test_readme.check_program(command)
        else:
            module = re.fullmatch(r"python -m ([\w.]+)", command)
            assert importlib.util.find_spec(module[1])


def test_no_page_names_another_system():
    for page in (ROOT / "docs").rglob("*.md"):
        named = re.findall(r"\[([A-D]\d)\]\([\w./]*systems\.md\)", page.read_text())
        for name in named:
            assert page.relative_to(PAGE.parent).as_posix() in items(name)["Pages"], f"{name} in {page}"
