"""Generated pages are up to date, and the lines and links of all pages are valid."""

import re

import pytest

from hdl.control.registers import ALL_REGISTERS
from host import documents

PAGES = [documents.ROOT / "README.md", *sorted((documents.ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text):
    """Anchors of a page's headings as GitHub generates them, with the suffix -1 if an anchor is repeated."""
    slugs = []
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slugs.append(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return {f"{name}-{slugs[:index].count(name)}" if name in slugs[:index] else name
            for index, name in enumerate(slugs)}


def bad_links(page):
    """Relative links on a page that point to missing files or anchors."""
    bad = []
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            bad.append(target)
    return bad


def test_documents_are_up_to_date():
    assert documents.check() == []


def test_check_finds_what_is_stale(tmp_path):
    assert documents.check(tmp_path) == [
        "docs/architecture.md", "docs/node.md", "docs/predict.md", "docs/registers.md", "docs/run.md",
        "docs/registers.rdl", "host/make/options.json"]
    documents.write(tmp_path)
    assert documents.check(tmp_path) == []
    with (tmp_path / "docs/registers.md").open("a") as file:
        file.write("more\n")
    assert documents.check(tmp_path) == ["docs/registers.md"]


def test_pages_that_sources_name():
    """All pages that docstrings, comments and messages mention exist."""
    sources = [path for tree in ("hdl", "sim", "host", "boards", "gradring")
               for path in (documents.ROOT / tree).rglob("*.py")]
    pages = {(page, path.name) for path in sources for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())}
    assert [names for names in sorted(pages) if not (documents.ROOT / names[0]).exists()] == []


def test_walks_are_short():
    """The four walks through the code in docs/architecture.md name only a few files, and only names that exist."""
    text = documents.architecture_page()
    walks = text[text.index("### Four walks"):text.index("## From Python")].split("\n\nFrom ")[1:]
    files = [len({match[1] for match in documents._PLACE.finditer(walk)}) for walk in walks]
    assert [count <= most for count, most in zip(files, (10, 10, 6, 4), strict=True)] == [True] * 4
    with pytest.raises(ValueError, match=r"^host/documents.py must define nothing, which docs/architecture.md names"):
        documents._line_of("host/documents.py", "nothing")


def test_every_register_and_field_is_in_the_map():
    text = documents.register_map()
    items = " ".join(text.split())
    for entry in ALL_REGISTERS:
        assert f"- 0x{entry.address:02x} `{entry.name}` (" in text
        assert f"): {' '.join(entry.doc.split())}" in items
        for field in entry.fields:
            assert f"| `{field.name}` | {field.doc} |" in text


def test_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(documents, "write", lambda: None)
    assert documents.main([]) == 0
    assert documents.main(["--check"]) == 0
    monkeypatch.setattr(documents, "check", lambda: ["docs/registers.md"])
    assert documents.main(["--check"]) == 1
    assert "docs/registers.md is stale: run `python -m host.documents`" in capsys.readouterr().err
    assert documents.main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(documents.ROOT)))
def test_lines_and_links_of_pages(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, start=1) if len(line) > documents.WIDTH] == []
    assert bad_links(page) == []


def test_bad_links_are_found(tmp_path):
    (tmp_path / "there.md").write_text("# One\n\n## `Two` words, twice\n\n## Two words twice\n")
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](there.md#one) [b](there.md#two-words-twice-1) [c](#here) "
                    "[d](https://example.org/x)\n```\n# Code\n[e](nowhere.md)\n```\n")
    assert bad_links(page) == []
    page.write_text("[a](nowhere.md) [b](there.md#three) [c](#here) [d](there.md#two-words-twice-2)\n")
    assert bad_links(page) == ["nowhere.md", "there.md#three", "#here", "there.md#two-words-twice-2"]
