"""Every page in docs/ is at most three clicks away from the home page."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")}
HOME = "index.md"
CLICKS = 3
_CODE = re.compile(r"^```.*?^```$|^(?: {4}[^\n]*\n)+|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+\.md)(?:#[^)\s]*)?\)")


def links(name, pages):
    """Other pages that a page links to, except in code."""
    text = _CODE.sub("", pages[name].read_text(encoding="utf-8"))
    targets = {posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) for target in _LINK.findall(text)}
    return targets & pages.keys() - {name}


def clicks(pages):
    """Minimum number of clicks from the home page to each reachable page."""
    counts, current = {HOME: 0}, {HOME}
    while current:
        following = {other for name in current for other in links(name, pages)} - counts.keys()
        counts.update(dict.fromkeys(following, counts[min(current, key=counts.get)] + 1))
        current = following
    return counts


def without_inbound_link(pages):
    """Pages, except the home page, that no other page links to."""
    return pages.keys() - {HOME} - {other for name in pages for other in links(name, pages)}


def test_each_page_is_linked():
    assert len(PAGES) > 90
    assert without_inbound_link(PAGES) == set()


def test_clicks_from_the_home_page():
    counts = clicks(PAGES)
    assert PAGES.keys() - counts.keys() == set()
    assert {name: count for name, count in counts.items() if count > CLICKS} == {}


def test_doors():
    """The home page starts with three entry points, each with four to six links."""
    sections = (DOCS / HOME).read_text(encoding="utf-8").split("\n## ")[1:4]
    assert [section.splitlines()[0] for section in sections] == [
        "Train a model", "Design or compare a format", "Reuse a unit"]
    for section in sections:
        assert 4 <= len(_LINK.findall(section)) <= 6


def test_a_picture_of_the_home_page_and_the_readme():
    for page in (DOCS / HOME, ROOT / "README.md"):
        (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        assert (page.parent / picture).resolve() == DOCS / "ring.svg"
    assert "http" not in (DOCS / "ring.svg").read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")


def test_lost_pages_are_found(tmp_path):
    """In a chain of five pages, unreachable pages are found; links in code and self-links do not count."""
    (tmp_path / "a").mkdir()
    texts = {"index.md": "[one](a/one.md)\n```\n[lost](lost.md)\n```\n`[lost](lost.md)`\n\n    [lost](lost.md)\n",
             "a/one.md": "[two](two.md#there) [home](../index.md)\n", "a/two.md": "[three](../three.md)\n",
             "three.md": "[four](four.md)\n", "four.md": "", "lost.md": "[itself](lost.md)\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    pages = {name: tmp_path / name for name in texts}
    assert clicks(pages) == {"index.md": 0, "a/one.md": 1, "a/two.md": 2, "three.md": 3, "four.md": 4}
    assert without_inbound_link(pages) == {"lost.md"}
