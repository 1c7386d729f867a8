"""Documentation site: builds strictly, loads nothing from other servers, and contains every API name."""

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradring
from tests import chromium

ROOT = Path(__file__).parents[2]


def mkdocs(*arguments, folder):
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", *arguments], cwd=folder,
                          capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    ended = mkdocs("--site-dir", folder, folder=ROOT)
    assert ended.returncode == 0, ended.stderr
    return folder


class Resources(html.parser.HTMLParser):
    """Return the addresses that a browser loads for a page, and the identifiers in the page."""

    def __init__(self, path):
        super().__init__()
        self.addresses, self.names = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.names.add(values.get("id"))
        if tag != "a" and values.get("rel") not in ("canonical", "prev", "next"):
            self.addresses += [values[name] for name in ("src", "href") if values.get(name)]


def test_nothing_of_other_servers(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md"))) > 90
    for page in pages:
        for address in Resources(page).addresses:
            assert not address.startswith(("http:", "https:", "//")), f"{page}: {address}"
            if not address.startswith(("data:", "#")) and page.name != "404.html":
                assert (page.parent / address).exists(), f"{page}: {address}"


def test_api(site):
    page = site / "api" / "library.html"
    assert {f"gradring.{name}" for name in gradring.__all__} <= Resources(page).names
    text = page.read_text()
    assert "Members" not in text
    assert ":class:" not in text
    assert "::</p>" not in text
    # API signatures are formatted with one parameter per line.
    signature = re.search(r'<code class="nf">simulate.*?</pre>|simulate</span>.*?</pre>', text, re.DOTALL)[0]
    assert signature.count("\n") > 3


def test_sources(site):
    assert 'href="sources/hdl/board.py.html"' in (site / "boards.html").read_text()
    assert "BOARDS" in (site / "sources" / "hdl" / "board.py.html").read_text()


def test_search(site):
    index = (site / "search" / "search_index.js").read_text()
    locations = {entry["location"] for entry in json.loads(index.removeprefix("var __index = "))["docs"]}
    assert {"api/library.html#gradring.simulate", "numbers.html"} <= locations
    assert not any(location.startswith("sources/hdl") for location in locations)


@pytest.mark.parametrize(("words", "address"), [
    ("simulate", "api/library.html"), ("install", "quick-start.html"), ("mx9", "compression/shared_exponent.html"),
    ("PyTorch", "pytorch.html")])
def test_search_without_a_server(site, tmp_path, words, address):
    """Search works without a server; the first result is the page that explains the search words."""
    chromium.needed()
    loaded = chromium.load(f"{(site / 'index.html').as_uri()}?q={words}", "--virtual-time-budget=20000",
                           profile=tmp_path)
    results = re.findall(r'<a href="([^"]*)" class="md-search-result__link"', loaded.text)
    assert results[0].partition("?")[0].endswith(f"/{address}"), results
    assert loaded.messages == []


@pytest.mark.parametrize(("text", "complaint"), [
    ("[there](../hdl/unit.py)", None),
    ("[there](../hdl/unit.py#L3)", None),
    ("[not there](../hdl/other.py)", "other.py"),
    ("[not there](absent.md)", "absent.md"),
    ("[not there](#absent)", "#absent"),
])
def test_links(tmp_path, text, complaint):
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: links\nhooks: [{ROOT / 'docs/site/sources.py'}]\nvalidation: {{anchors: warn}}\n")
    for name, content in {"docs/index.md": f"# Links\n\n{text}\n", "hdl/unit.py": "x = '```'\n"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    ended = mkdocs(folder=tmp_path)
    assert (ended.returncode == 0) == (complaint is None), ended.stderr
    if complaint is None:
        assert "x = '```'" in (tmp_path / "site/sources/hdl/unit.py/index.html").read_text().replace("&#39;", "'")
    else:
        assert complaint in ended.stderr
