"""Plain text output to terminals and files, free of markup, control characters and unencodable characters.

File, script and codec names and error messages may contain any characters. ``[/b]`` is not treated as markup or
``:smile:`` as an emoji, and escape sequences do not move the cursor. All commands print to a :class:`PlainConsole`
and show progress in :class:`PlainColumn` columns.

Tables and verdicts contain a few non-ASCII characters. Even if standard output is ASCII or Latin-1 (``LANG=C``,
``PYTHONIOENCODING=ascii``), a run must not fail while printing its last line.
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
    """Replace characters that an encoding lacks with similar characters, or with ``?``."""
    return text.encode(encoding, "gradring.plain").decode(encoding)


def tolerate(*streams: TextIO) -> None:
    """Make streams replace the characters that their encoding lacks, instead of raising an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gradring.plain")


class PlainConsole(Console):
    """Console that prints text verbatim, without markup, emoji codes or highlighting, even if requested.

    Control characters are escaped, and characters missing from the encoding are replaced, before tables are laid out,
    so columns stay aligned. Lines wider than the terminal are not cropped.
    """

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        super().print(*objects, crop=crop, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(printable_lines(text), self.encoding),
                                  **options | {"markup": False, "emoji": False, "highlight": False})


class PlainColumn(TextColumn):
    """Progress column of verbatim text; its format may refer to fields of ``task``."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, markup=False)

    def render(self, task: Task) -> Text:
        return Text(printable(self.text_format.format(task=task)), style=self.style, justify=self.justify)
