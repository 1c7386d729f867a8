"""Verbatim text for terminals and files: without markup, control characters, or characters that an encoding lacks.

Names of files, scripts and codecs, and texts of errors, may have any characters. ``[/b]`` is no markup, ``:smile:``
no emoji, and an escape sequence moves no cursor. All commands print to a :class:`PlainConsole`, and show progress in
columns of :class:`PlainColumn`.

Tables and verdicts use a few characters beyond ASCII. Standard output may be ASCII or Latin-1 (``LANG=C``,
``PYTHONIOENCODING=ascii``), and a run must not fail there at its last line.
"""

import codecs
import io
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

from host.printable import printable, printable_lines

__all__ = ["PlainColumn", "PlainConsole", "plain", "tolerate"]

_PLAIN = {"·": "|", "…": "..", "→": "->", "\N{MULTIPLICATION SIGN}": "x", "≥": ">=", "≤": "<=", "²": "^2", "␣": "_",
          "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-"}


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start:error.end]), error.end


codecs.register_error("gradring.plain", _replace)


def plain(text: str, encoding: str) -> str:
    """The text with characters that an encoding lacks replaced: known ones by plain ones, the rest by a ``?``."""
    return text.encode(encoding, "gradring.plain").decode(encoding)


def tolerate(*streams: TextIO) -> None:
    """Make streams write plain characters in place of characters that their encodings lack, without an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gradring.plain")


class PlainConsole(Console):
    """A console that prints every text unchanged: no markup, emoji codes or highlights, for any request of a caller.

    Control characters are escaped, and characters that the encoding lacks replaced, before tables are laid out, so
    that columns stay in line. Lines that are wider than a terminal or a file are not cut.
    """

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        super().print(*objects, crop=crop, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(printable_lines(text), self.encoding),
                                  **options | {"markup": False, "emoji": False, "highlight": False})


class PlainColumn(TextColumn):
    """A column of a progress display with the text unchanged, of a format that may name the fields of ``task``."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, markup=False)

    def render(self, task: Task) -> Text:
        return Text(printable(self.text_format.format(task=task)), style=self.style, justify=self.justify)
