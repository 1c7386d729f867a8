"""Texts that move no cursor and change no color, whatever characters a name or an error has."""

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    """Escape the characters of a text that are not printable, new lines among them."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """Escape the characters of a text that are not printable, but for new lines."""
    return "\n".join(map(printable, text.split("\n")))
