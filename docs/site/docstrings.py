"""Docstrings of this project as mkdocstrings wants them: an extension of its reader.

Sections of members have another title there, and roles and literal blocks of reStructuredText another form.
"""

import re

from griffe import Extension, Object

__all__ = ["Markdown", "markdown"]

_SECTION = re.compile(r"^Members\n-------$", re.MULTILINE)
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`(?:~[\w.]*\.)?([^`]+)`")
_LITERAL = re.compile(r"(?:^::|::)$", re.MULTILINE)


def markdown(text: str) -> str:
    """A docstring whose sections numpydoc knows, with text in Markdown."""
    text = _SECTION.sub("Attributes\n----------", text)
    text = _ROLE.sub(r"`\1`", text)
    return _LITERAL.sub(lambda match: "" if match.start() == 0 or text[match.start() - 1] == "\n" else ":", text)


class Markdown(Extension):
    """Rewrite every docstring as it is read."""

    def on_object(self, *, obj: Object, **arguments: object) -> None:
        """An object has been read with its docstring."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
