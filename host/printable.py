"""Texts that move no cursor and change no color, for any characters of a name or an error."""

__all__ = ["one_line", "printable", "printable_lines"]


def printable(text: str) -> str:
    """Escape the characters of a text that are not printable, new lines among them."""
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode()
                   for character in text)


def printable_lines(text: str) -> str:
    """Escape the characters of a text that are not printable, except new lines."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(error: BaseException) -> str:
    """Text of an error in one line, or the name of its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
