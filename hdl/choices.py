"""Error messages for invalid names, with suggestions for the name that was meant."""

import difflib
from collections.abc import Iterable

__all__ = ["MAX_SHOWN", "choice_error", "suggestion"]

#: Maximum number of names listed in a message; for longer lists, the message gives only their number.
MAX_SHOWN = 24


def suggestion(names: Iterable[str], wrong: str) -> str:
    """Return a suggestion such as ``": did you mean mx9 or mx6?"``; empty if no name is similar."""
    close = difflib.get_close_matches(wrong, list(names), n=3, cutoff=0.65)
    return f": did you mean {' or '.join(close)}?" if close else ""


def choice_error(what: str, names: Iterable[str], wrong: str, *, listed: str = "the list",
                 separator: str = ", ") -> str:
    """Return the message for an invalid name.

    Parameters
    ----------
    what : str
        Noun at the start of the message.
    names : iterable of str
        Valid names.
    wrong : str
        Invalid name that was used.
    listed : str
        Where to find the names if there are too many to list in the message.
    separator : str
        Text placed between names.
    """
    names = list(names)
    if not names:
        return f"{what} must be left out, since there is none to choose, not {wrong!r}"
    possible = f"the {len(names)} of {listed}" if len(names) > MAX_SHOWN else separator.join(names)
    return f"{what} must be one of {possible}, not {wrong!r}{suggestion(names, wrong)}"
