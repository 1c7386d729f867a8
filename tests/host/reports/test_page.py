"""HTML report pages: the files that they consist of, and how a browser renders them."""

import contextlib
import html
import itertools
import json
import re

import matplotlib.image
import numpy as np
import pytest

from host.columns import pairs
from host.jobs.figures import Figures
from host.labs.sweep import plan as sweep
from host.labs.sweep.page import tables
from host.pytorch import report as pytorch_report
from host.pytorch.jobs import Jobs, Operation, Options
from host.reports import page, summary
from host.reports import report as reports
from tests import chromium
from tests.host.labs.sweep.results_of_plan import store_all
from tests.host.reports.test_report import build, build_changing, build_comparison, build_sparse, build_text, write

#: Widths of a window on a phone and on a computer, in pixels.
WIDTHS = (390, 1280)

#: Number of pictures on each page. Each picture is in a panel; on a narrow page, panels are stacked.
PANELS = {"plain": 4, "comparison": 4, "sparse": 6, "text": 6, "changing": 4, "launch": 1, "sweep": 4}

#: Page that shows all report pages in frames of every width, and reports the contents of each frame and whether they
#: fit.
HARNESS = """<!doctype html><meta charset="utf-8"><title>frames</title>{frames}<script>
function decoded(image) {{  // to its last row
  if (!image.complete || !image.naturalWidth) return false
  const context = document.createElement("canvas").getContext("2d")
  context.drawImage(image, 0, image.naturalHeight - 1, 1, 1, 0, 0, 1, 1)
  return context.getImageData(0, 0, 1, 1).data[3] === 255
}}
onload = () => {{
  const found = []
  for (const frame of document.querySelectorAll("iframe")) {{
    const page = frame.contentDocument
    found.push({{
      name: frame.name, width: page.documentElement.clientWidth, needed: page.documentElement.scrollWidth,
      decoded: [...page.images].map(decoded), title: page.title, language: page.documentElement.lang,
      scripts: page.scripts.length,
      panels: [...page.images].map(image => {{
        const box = image.getBoundingClientRect()
        return [Math.round(box.left), Math.round(box.top), Math.round(box.bottom)]
      }}),
      alternatives: [...page.images].map(one => one.alt),
      tables: Object.fromEntries([...page.querySelectorAll("section:has(table)")].map(section => [
        section.querySelector("h2").textContent,
        [...section.querySelectorAll("tr")].map(row => [...row.children].map(
          cell => (cell.querySelector("span") ?? cell).textContent))])),
      notes: [...page.querySelectorAll("li")].map(note => note.textContent),
      marks: [...page.querySelectorAll("sup a")].map(mark => page.querySelector(mark.getAttribute("href")) !== null),
    }})
  }}
  const result = document.body.appendChild(document.createElement("pre"))
  result.id = "result"
  result.textContent = JSON.stringify(found)
}}
</script>"""


def pytorch(folder, count=40):
    """Write the report of a PyTorch script that ran on four ranks."""
    generator = np.random.default_rng(5)
    jobs = Jobs(Options(nodes=4), contextlib.ExitStack())
    jobs.cycles = 500_000
    jobs.operations = [Operation(kind="all_reduce", job=0, figures=Figures(
        elements=2410, commands=1, cycles=2900 + int(generator.integers(90)), bound=2700, sparsify_cycles=0,
        host_cycles=5000, words=10_000 + number, words_dense=14_000, sent=7000, nonzeros=5000, seconds=0.1))
        for number in range(count)]
    built = pytorch_report.build_report(Options(nodes=4), jobs, gloo={"broadcast": (4, 99_000, 0)},
                                        backends=[["gradring"]] * 4, slow=[0] * 4, seconds=9.0)
    return pytorch_report.write_report(built, folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Report folders keyed by name, each with the JSON file, the pictures and the page."""
    folder = tmp_path_factory.mktemp("pages")
    runs = {"plain": build(), "comparison": build_comparison(), "sparse": build_sparse(), "text": build_text(),
            "changing": build_changing()}
    for name, result in runs.items():
        (folder / name).mkdir()
        write(result, folder / name)
        reports.write_page(result, folder / name)
    (folder / "launch").mkdir()
    pytorch(folder / "launch")
    planned = sweep.plan(sweep.SweepConfig(formats=("mx9",), nodes=(2, 4), compute_formats=("fp32", "mx9")))
    (folder / "jobs").mkdir()
    store_all(planned, folder / "jobs")
    sweep.write(sweep.collect(planned, folder / "jobs"), folder / "sweep",
                products=sweep.products(planned, folder / "jobs"))
    return {name: folder / name for name in (*runs, "launch", "sweep")}


def frames(pages, folder):
    """Render pages in frames of all widths; return the results of ``HARNESS`` and the browser's messages."""
    shown = "".join(f'<iframe name="{name}" width="{width}" height="900" srcdoc="{html.escape(text)}"></iframe>'
                    for name, text in pages.items() for width in WIDTHS)
    (folder / "frames.html").write_text(HARNESS.format(frames=shown))
    loaded = chromium.load((folder / "frames.html").as_uri(), profile=folder / "profile")
    said = re.search(r'<pre id="result">(.*?)</pre>', loaded.text, re.DOTALL)
    return json.loads(html.unescape(said[1])), loaded.messages


@pytest.fixture(scope="module")
def shown(folders, tmp_path_factory):
    """Contents of every page at every width, as a browser renders them."""
    chromium.needed()
    pages = {name: next(folder.glob("*.html")).read_text() for name, folder in folders.items()}
    views, messages = frames(pages, tmp_path_factory.mktemp("browser"))
    assert messages == []
    assert [(view["name"], view["width"]) for view in views] == [(name, width) for name in pages for width in WIDTHS]
    return {name: [view for view in views if view["name"] == name] for name in pages}


def test_pages_fit_and_are_whole(shown):
    for name, widths in shown.items():
        for view in widths:
            assert view["needed"] <= view["width"], (name, view["width"])
            assert view["decoded"] == [True] * PANELS[name], name
            assert all(len(text) > 40 for text in view["alternatives"])
            assert view["title"].startswith("gradring: ")
            assert view["language"] == "en"
            assert view["scripts"] == 0
            assert all(view["marks"])


def test_panels_on_a_phone(shown):
    """Panels are stacked on a phone and side by side on a computer."""
    for name, (phone, computer) in shown.items():
        assert len({left for left, _, _ in phone["panels"]}) == 1, name
        for (_, _, bottom), (_, top, _) in itertools.pairwise(phone["panels"]):
            assert top >= bottom, name
        if PANELS[name] > 1:
            assert len({left for left, _, _ in computer["panels"]}) > 1, name


@pytest.mark.parametrize("name", ["plain", "comparison", "sparse", "text", "changing"])
def test_figures_of_training(shown, folders, name):
    """The page shows the same figures as report.json."""
    result = json.loads((folders[name] / "report.json").read_text())
    for view in shown[name]:
        figures = view["tables"]["Figures"]
        rows = list(map(list, summary.summary(result)))
        assert [[cell for cell in row if cell] for row in figures[-len(rows):]] == rows
        by_name = {row[0]: row[1] for row in figures}
        assert by_name["link words per step"] == f"{result['words_sent'] / result['steps']:,.0f}"
        assert by_name["simulated cycles"] == f"{result['cycles_simulated']:,}"
        measures = result["held_out_loss_per_interval" if name == "text" else "accuracy_per_epoch"]
        losses = result["loss_per_interval" if name == "text" else "loss_per_epoch"]
        assert [row[:3] for row in view["tables"]["Measurements"][1:]] == [
            [f"{step:,}", f"{loss:.4f}", f"{measure:.4f}" if name == "text" else f"{measure:.2%}"]
            for step, loss, measure in zip(result["measured_at"], losses, measures, strict=True)]
        settings = dict(view["tables"]["Training"])
        assert settings["Learning rate"] == str(result["training"]["learning_rate"])
        assert settings["Hidden"] == "64"
        node = dict(view["tables"]["Every node"])
        assert (node["Configuration hash"], node["Compute stub"]) == ("0x00001234", "none")
        assert any("Host ports are modelled" in note for note in view["notes"])


def test_changes(shown):
    """The page has a row for each interval between changes, with the rings that were used and the events of the
    interval."""
    for view in shown["changing"]:
        header, *rows = view["tables"]["Rings, from change to change"]
        assert header == ["from step", "request", "rings", "left", "joined", "elements moved", "cycles to switch",
                          "to hand state over", "words sent", "restarts", "words repeated"]
        assert rows == [
            ["1", "begin", "4 nodes, grid", "-", "-", "-", "-", "-", "5,401", "2", "20"],
            ["3", "disable card1, disable node1", "1 node, flat", "1, 2, 3", "-", "1,234", "1,502", "9,000", "2,702",
             "1", "10"],
            ["4", "enable card1", "3 nodes, flat", "-", "2, 3", "1,234", "1,503", "9,000", "5,407", "2", "20"],
            ["6", "enable node1", "4 nodes, grid", "-", "1", "1,234", "1,505", "9,000", "2,705", "1", "10"]]
        assert any("SWITCH on all nodes" in note for note in view["notes"])
        assert view["alternatives"][0].endswith("Vertical lines mark changes of the rings.")
        assert "Rings, from change to change" not in shown["plain"][0]["tables"]


def test_figures_of_a_script(shown, folders):
    result = json.loads((folders["launch"] / "report.json").read_text())
    for view in shown["launch"]:
        rows = dict(view["tables"]["on the simulated ring"])
        assert list(map(list, rows.items())) == pytorch_report.table(result).cells
        assert rows["cycles in all"] == f"{result['elapsed_cycles']:,}" == "500,000"
        assert rows["… cycles each"] == f"{result['groups'][0]['cycles'] / 40:,.0f}"


def test_figures_of_a_sweep(shown, folders):
    written = json.loads((folders["sweep"] / "sweep.json").read_text())
    for view in shown["sweep"]:
        for table in tables(written["rows"], written["compute"]):
            assert view["tables"][table.title] == [table.headings, *table.cells]


def test_faults_are_found(folders, tmp_path):
    """These checks detect pages that are too wide, external resources and invalid pictures."""
    chromium.needed()
    good = (folders["plain"] / "report.html").read_text()
    pages = {"wide": good.replace("</main>", '<p style="width: 1500px">wide</p></main>'),
             "elsewhere": good.replace("data:image", "https://example.org/image"),
             "cut": re.sub("(base64,.{20000}).*?\"", r'\1"', good)}
    views, messages = frames(pages, tmp_path)
    faults = {(view["name"], view["needed"] > view["width"], all(view["decoded"])) for view in views}
    assert faults == {("wide", True, True), ("elsewhere", False, False), ("cut", False, False)}
    assert any("Content Security Policy" in message for message in messages)


def test_a_browser_is_needed(monkeypatch):
    """If there is no browser, tests are skipped with a reason, or fail in CI."""
    monkeypatch.setattr(chromium, "PROGRAM", None)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="there is no Chromium on this machine"):
        chromium.needed()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="there is no Chromium on this machine"):
        chromium.needed()


def test_one_file(folders):
    """Pages contain their pictures, and refer to no other files."""
    for name, folder in folders.items():
        written, = folder.glob("*.html")
        text = written.read_text()
        named = set(re.findall(r"""(?:src|href)\s*=\s*["']?([^"':]*)""", text))
        assert named <= {"data", *re.findall("#note-.", text)}, name
        assert not re.search(r"url\(|@import", text), name
        assert "Content-Security-Policy" in text
        assert text.count("data:image/png;base64,") == PANELS[name]


def test_notes_say_what_is_modelled(tmp_path):
    result = build()
    changes = {"plain": {}, "modelled": {"compute": "modelled", "arithmetic": "native"},
               "board": {"transport": "serial", "host_port": {**result["host_port"], "simulated": True}}}
    write(result, tmp_path)
    texts = {name: reports.write_page({**result, **change}, tmp_path).read_text()
             for name, change in changes.items()}
    assert "Links between nodes are modelled: a word, and a credit, arrives after 16 cycles." in texts["plain"]
    assert "500,000 words have bypassed them" in texts["plain"]
    assert "Computing is modelled: nodes wait for the cycles that an engine of 16" in texts["modelled"]
    assert "instructions of the computer" in texts["modelled"]
    assert "modelled" not in re.sub(r"<style>.*?</style>", "", texts["board"], flags=re.DOTALL)


def test_script_without_sums(tmp_path):
    """If no sum went over the ring, no picture is drawn, and a picture of an earlier run is removed."""
    (tmp_path / "report.png").touch()
    assert [path.name for path in pytorch(tmp_path, count=0)] == ["report.json", "report.html"]
    assert not (tmp_path / "report.png").exists()
    text = (tmp_path / "report.html").read_text()
    assert "No sum went over the ring" in text
    assert "<img" not in text


def test_text_is_escaped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a <b>").mkdir()
    matplotlib.image.imsave(tmp_path / "picture.png", np.zeros((4, 4)))
    table = pairs("a < b", [("<script>", "&")])
    written = page.write_page(
        tmp_path / "a <b>/page.html", title="1 < 2", verdict='"so"', tables=[table],
        notes=[page.Note("<b>", ("<scr",))],
        pictures=[page.Picture(tmp_path / "picture.png", 'a "picture"')],
        report={"program": {"name": "n", "version": "1", "commit": None}, "run": {}})
    text = written.read_text()
    assert "<script>" not in text
    for part in ("1 &lt; 2", "a &lt; b", "&lt;script&gt;", "a &#34;picture&#34;", "&lt;b&gt;", 'href="#note-1"',
                 "This run again: <code>gradring train &#39;a &lt;b&gt;/report.json&#39;</code>"):
        assert part in text


def test_settings():
    table = page.settings_table("Some", {"a_b": None, "c": True, "d": [64, 32], "e": [], "f": 0.5})
    assert table.cells == [["A b", "none"], ["C", "yes"], ["D", "64, 32"], ["E", "none"], ["F", "0.5"]]
