"""Escaping of texts, so that no character in them can move the cursor or change the color."""

__all__ = ["one_line", "printable", "printable_lines"]


def printable(text: str) -> str:
    """Escape all characters of a text that are not printable, including newlines."""
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode()
                   for character in text)


def printable_lines(text: str) -> str:
    """Escape all characters of a text that are not printable, except newlines."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(error: BaseException) -> str:
    """Text of an error on one line, or the name of its class if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
