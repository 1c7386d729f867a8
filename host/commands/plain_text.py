"""Text for terminals and files whose encoding lacks characters: plain ones take their place.

Tables and verdicts use a few characters beyond ASCII. Standard output may be ASCII or Latin-1 (``LANG=C``,
``PYTHONIOENCODING=ascii``), and a run must not end at its last line for that.
"""

import codecs
import io
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

__all__ = ["PlainConsole", "plain", "tolerate"]

_PLAIN = {"·": "|", "…": "..", "→": "->", "\N{MULTIPLICATION SIGN}": "x", "≥": ">=", "≤": "<=", "²": "^2", "␣": "_",
          "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-"}


def plain(text: str, encoding: str) -> str:
    """The text with characters that an encoding lacks replaced: known ones by plain ones, others by a ``?``."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_encodable(character, encoding) for character in text)
    return text


def _encodable(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return _PLAIN.get(character, "?")
    return character


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start:error.end]), error.end


codecs.register_error("gradring.plain", _replace)


def tolerate(*streams: TextIO) -> None:
    """Have streams write plain characters for those that their encodings lack, in place of raising an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gradring.plain")


class PlainConsole(Console):
    """A console that replaces characters before tables are laid out, so that columns stay in line."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text, self.encoding), **options)
