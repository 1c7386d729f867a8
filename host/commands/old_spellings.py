"""Command lines of the release before, in today's words; each prints a warning."""

import sys
from collections.abc import Sequence

__all__ = ["translated"]

#: Today's words for a command, and for options of it.
_COMMANDS = {
    "relay-nodes": (["train", "--schedule", "streaming"],
                    {"--sets": "--steps", "--rate": "--learning-rate", "--far": "--server-far"}),
}


def translated(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command line in today's words."""
    if not arguments or arguments[0] not in _COMMANDS:
        return list(arguments)
    words, options = _COMMANDS[arguments[0]]
    for argument in arguments[1:]:
        name, equals, value = argument.partition("=")
        words = [*words, options.get(name, name) + equals + value]
    print(f"warning: gradring {arguments[0]} is an old spelling: write gradring {' '.join(words)}", file=sys.stderr)
    return words
