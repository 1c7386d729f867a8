"""Command lines of the release before, in today's words; each prints a warning."""

import sys
from collections.abc import Sequence

__all__ = ["translated"]

#: Today's words for a command, and for options of it.
_COMMANDS = {
    "relay-nodes": (["train", "--schedule", "streaming"],
                    {"--sets": "--steps", "--rate": "--learning-rate", "--far": "--server-far"}),
    "train": (["train"], {"--late": "--stale-gradients", "--lambda": "--staleness-factor", "--sets": "--steps",
                          "--rate": "--learning-rate"}),
}
#: Today's words for the beginnings of values, by today's options.
_VALUES = {"--stale-gradients": ("fold", "apply-late"), "--overlap": ("stale:", "delayed:")}


def translated(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command line in today's words."""
    if not arguments or arguments[0] not in _COMMANDS:
        return list(arguments)
    words, options = _COMMANDS[arguments[0]]
    last = ""
    for argument in arguments[1:]:
        name, equals, value = argument.partition("=")
        name = options.get(name, name)
        words = [*words, f"{name}={_value(name, value)}" if equals else _value(last, name)]
        last = name
    if words != list(arguments):
        print(f"warning: gradring {' '.join(arguments)} has old spellings: write gradring {' '.join(words)}",
              file=sys.stderr)
    return words


def _value(option: str, value: str) -> str:
    """Value of an option in today's words."""
    old, new = _VALUES.get(option, ("", ""))
    return new + value[len(old):] if old and value.startswith(old) else value
