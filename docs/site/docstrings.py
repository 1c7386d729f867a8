"""Griffe extension that converts docstrings of this project for mkdocstrings.

It renames the section "Members", and turns roles and literal blocks of reStructuredText into Markdown.
"""

import re

from griffe import Extension, Object

__all__ = ["Markdown", "markdown"]

_SECTION = re.compile(r"^Members\n-------$", re.MULTILINE)
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`(?:~[\w.]*\.)?([^`]+)`")
_LITERAL = re.compile(r"(?:^::|::)$", re.MULTILINE)


def markdown(text: str) -> str:
    """Convert a docstring to Markdown, with section titles that numpydoc knows."""
    text = _SECTION.sub("Attributes\n----------", text)
    text = _ROLE.sub(r"`\1`", text)
    return _LITERAL.sub(lambda match: "" if match.start() == 0 or text[match.start() - 1] == "\n" else ":", text)


class Markdown(Extension):
    """Griffe extension that converts every docstring when it is loaded."""

    def on_object(self, *, obj: Object, **arguments: object) -> None:
        """Convert the docstring of an object that has been loaded."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
