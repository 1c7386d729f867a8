"""Options and variables of make's command line, as ``MAKEFLAGS`` has them: ``n -j2 -- NODES=8 UNIT=a\\ b``."""

import re

__all__ = ["read_flags"]

#: A word: characters, each of which may follow a backslash. Words end at blanks, but not at ends of lines.
_WORD = re.compile(r"(?:\\.|[^\\ \t])+", re.DOTALL)


def read_flags(flags: str) -> tuple[str, dict[str, str]]:
    """Letters of make's options, and values of variables.

    Parameters
    ----------
    flags : str
        Value of ``MAKEFLAGS``. After the word ``--`` blanks and backslashes follow a backslash, and ``$`` is doubled.
    """
    words = [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL).replace("$$", "$") for word in _WORD.findall("-" + flags)]
    end = words.index("--") if "--" in words else len(words)
    letters = words[0][1:] if end and not words[0].startswith("--") else ""
    pairs = [re.split(r":*=", word, maxsplit=1) for word in words[end + 1:]]
    return letters, {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
