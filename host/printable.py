"""Functions that escape texts, so that no character can move the cursor or change the color."""

__all__ = ["one_line", "printable", "printable_lines"]


def printable(text: str) -> str:
    """Escape all unprintable characters of a text, including newlines."""
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode()
                   for character in text)


def printable_lines(text: str) -> str:
    """Escape all unprintable characters of a text except newlines."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(error: BaseException) -> str:
    """Format the text of an error on one line, or its class name if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
