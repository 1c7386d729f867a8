"""Links from pages to files of the tree outside docs/: those files become pages of the site, under sources/.

A hook of MkDocs. A link to a file that does not exist is left as it is, and MkDocs warns of it.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

#: The address of a link that leaves the folder of its page, and the anchor behind it.
_LINK = re.compile(r"\]\((\.\./[^)\s#]+)(?:#[^)\s]*)?\)")
#: Languages of code blocks, by the suffix of a file.
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".v": "verilog", ".toml": "toml"}

_FENCE = "`" * 8
#: What a page of code begins with, so that it is not searched.
_HIDDEN = "---\nsearch: {exclude: true}\n---\n\n"


def _name(uri: str, link: str, config: MkDocsConfig) -> str | None:
    """Name in the tree of the file that a page links to; None if that is not a file outside docs/."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    name = posixpath.normpath(posixpath.join(docs.relative_to(root).as_posix(), posixpath.dirname(uri), link))
    outside = not name.startswith("../") and not (root / name).is_relative_to(docs)
    return name if outside and (root / name).is_file() else None


def _uri(name: str) -> str:
    """The page of a file of the tree, as a name within docs/."""
    return f"sources/{name.removesuffix('.md')}.md"


def _page(name: str, config: MkDocsConfig) -> File:
    """The page of a file: Markdown as it is, anything else as a code block."""
    path = Path(config.config_file_path).parent / name
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        language = _LANGUAGES.get(path.suffix, "text")
        text = f"{_HIDDEN}# {name}\n\n{_FENCE}{language}\n{text}{_FENCE}\n"
    return File.generated(config, _uri(name), content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of all files that pages link to."""
    names = {_name(file.src_uri, link, config) for file in files.documentation_pages()
             for link in _LINK.findall(file.content_string)}
    for name in sorted(filter(None, names)):
        files.append(_page(name, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links to files outside docs/ lead to their pages."""
    here = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        name = _name(page.file.src_uri, link[1], config)
        if name is None:
            return link[0]
        return f"]({posixpath.relpath(_uri(name), here or '.')})"

    return _LINK.sub(replaced, markdown)
