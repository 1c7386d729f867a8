"""MkDocs hook that adds linked files outside docs/ to the site, as pages under sources/.

A link to a file that does not exist is left unchanged, and MkDocs reports it.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

#: Markdown link to a path that starts with ../, with an optional anchor.
_LINK = re.compile(r"\]\((\.\./[^)\s#]+)(?:#[^)\s]*)?\)")
#: Language of the code block for each file suffix.
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".v": "verilog", ".toml": "toml"}

_FENCE = "`" * 8
#: Front matter that excludes a page of code from the search index.
_HIDDEN = "---\nsearch: {exclude: true}\n---\n\n"


def _name(uri: str, link: str, config: MkDocsConfig) -> str | None:
    """Return the repository path of a linked file, or None if it is missing or inside docs/."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    name = posixpath.normpath(posixpath.join(docs.relative_to(root).as_posix(), posixpath.dirname(uri), link))
    outside = not name.startswith("../") and not (root / name).is_relative_to(docs)
    return name if outside and (root / name).is_file() else None


def _uri(name: str) -> str:
    """Return the URI of the page that shows a repository file."""
    return f"sources/{name.removesuffix('.md')}.md"


def _page(name: str, config: MkDocsConfig) -> File:
    """Make the page of a file: Markdown is copied, and any other text becomes a code block."""
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
    """Redirect links to files outside docs/ to the pages of these files."""
    here = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        name = _name(page.file.src_uri, link[1], config)
        if name is None:
            return link[0]
        return f"]({posixpath.relpath(_uri(name), here or '.')})"

    return _LINK.sub(replaced, markdown)
