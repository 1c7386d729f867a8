"""Widths of a perceptron's hidden layers, as the command line is given them."""

__all__ = ["widths"]

#: Most hidden layers of a perceptron.
_LAYERS = 1000


def widths(text: str) -> tuple[int, ...]:
    """Widths of hidden layers, as in ``64,32`` or, for nine of 32, ``32x9``; none of ``none``."""
    found: list[int] = []
    try:
        for part in text.split(",") if text not in ("", "none") else ():
            width, times, count = part.partition("x")
            number = int(count) if times else 1
            if number < 1 or len(found) + number > _LAYERS:
                raise ValueError
            found += [int(width)] * number
    except ValueError:
        raise ValueError(f"Widths of hidden layers must be numbers, or a number x a count as in 32x9, of at most "
                         f"{_LAYERS:,} layers, with commas between them, not {text!r}") from None
    return tuple(found)
