"""Random invalid command lines, determined by a seed: wrong options, values, operands and files."""

import dataclasses
import enum
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.wrong_commands.commands import COMMANDS, Command, Option

LARGE = str(10**22 + 7)

#: Values by type: values that are invalid for every option of the type, and values that are valid for some options.
_NEVER = {int: ("x", "", "nan", "1.5", "1e3", "0x10", "\N{SUPERSCRIPT TWO}", "\x1b[31m7"),
          float: ("x", "", "1,5", "1/0x")}
_DOUBTFUL = {
    int: ("0", "-1", LARGE, "-" + LARGE),
    float: ("0", "-1", LARGE, "nan", "inf", "-inf", "1e-320"),
    str: ("", " ", "0", "-1", "x", "nan", LARGE, "64x70", "64x0", "1/0", ",", ",,1", "a=b=c", "3:0", "[/b]", "{}",
          "\x1b[31mred", "a\nb", "\u202e", os.fsdecode(b"\xff\xfe"), "y" * 5000, "../..", "*"),
    Path: ("", "missing", "missing/below", "folder", "empty", "garbage", "script.py/below", "/dev/null", "/proc/new",
           "locked/new", "z" * 300, "a\nb", "\x1b[31mred", os.fsdecode(b"\xff\xfe"), "loop")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    module: str  # module to run
    command: str
    words: tuple[str, ...]  # its command line
    certain: bool  # whether the command line must be rejected because it cannot be legal
    mistakes: tuple[str, ...]  # kinds of mistakes in the command line


def prepare(folder: Path) -> None:
    """Create the files and folders that random command lines name."""
    (folder / "script.py").write_text("")
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "garbage").write_bytes(random.Random(1).randbytes(5000))
    (folder / "loop").symlink_to("loop")
    (folder / "locked").mkdir(mode=0o500)


def _misspelt(generator: random.Random, word: str) -> str:
    """Return a name in which one character has been replaced."""
    if len(word) < 2:
        return word + "q"
    at = generator.randrange(1, len(word))
    return word[:at] + "q" + word[at + generator.randrange(2):]


def _joined(option: Option, value: str) -> list[str]:
    """Return the words for a positional argument, or for an option with a value that may begin with a dash."""
    return [f"{option.name}={value}"] if option.name else [value]


def _value(generator: random.Random, option: Option) -> tuple[str, bool]:
    """Draw an invalid value for an option; return it, and whether it is certainly invalid."""
    if issubclass(option.kind, enum.Enum):
        return _misspelt(generator, generator.choice(option.samples)), True
    if option.kind in _NEVER and generator.random() < 0.4:
        return generator.choice(_NEVER[option.kind]), True
    if option.kind is str and generator.random() < 0.3:
        return _misspelt(generator, generator.choice(option.samples)), False
    return generator.choice(_DOUBTFUL[option.kind]), False


def _wrong_value(generator: random.Random, command: Command, words: list[str], taken: set[str]) -> bool | None:
    options = [item for item in command.options if item.kind is not bool and item.name not in taken]
    if not options:
        return None
    option = generator.choice(options)
    taken.add(option.name)
    value, certain = _value(generator, option)
    words += _joined(option, value)
    return certain


def _one_word(fits: Callable[[Option], Any], spoil: Callable[[random.Random, str], str]) -> Callable[..., Any]:
    """Return a function that makes a mistake in a command line: it adds the altered name of an option for which
    ``fits`` is true."""
    def mistake(generator: random.Random, command: Command, words: list[str], taken: set[str]) -> bool | None:
        options = [option for option in command.options if fits(option)]
        if not options:
            return None
        words.append(spoil(generator, generator.choice(options).name))
        return True

    return mistake


def _operands(generator: random.Random, command: Command, words: list[str], taken: set[str]) -> bool | None:
    """Add more operands than a command accepts, or omit the required ones."""
    needed = [option for option in command.options if not option.name and option.required]
    if needed and generator.random() < 0.5:
        taken.update(option.name for option in needed)
        return True
    words[:0] = ["x"] * (1 + sum(not option.name for option in command.options))
    return not any(not option.name for option in command.options)  # otherwise, the operands may belong to a script


def _wrong_command(generator: random.Random, command: Command, words: list[str], taken: set[str]) -> bool | None:
    if not command.path:
        return None
    taken.add("path")
    return True


def _together(generator: random.Random, command: Command, words: list[str], taken: set[str]) -> bool | None:
    """Combine options that may exclude each other, or have no effect together."""
    options = [item for item in command.options if item.name and item.name not in taken]
    if len(options) < 2:
        return None
    for option in generator.sample(options, min(len(options), 3)):
        taken.add(option.name)
        words += [option.name] if option.kind is bool else _joined(option, generator.choice(option.samples))
    return False


#: Kinds of mistakes, each with its relative frequency.
MISTAKES = {
    "value": (_wrong_value, 8), "options together": (_together, 4),
    "name of an option": (_one_word(lambda item: item.name, _misspelt), 2),
    "flag with a value": (_one_word(lambda item: item.kind is bool, lambda _, name: f"{name}=1"), 1),
    "operands": (_operands, 2), "name of a command": (_wrong_command, 1),
    "option without a value": (_one_word(lambda item: item.name and item.kind is not bool, lambda _, name: name), 1)}


def draw(number: int, *, seed: int, commands: Sequence[Command] = COMMANDS) -> Case:
    """Draw case ``number``. Odd numbers cycle through all commands; even numbers prefer commands with many
    options."""
    generator = random.Random(f"{seed}/{number}")
    command = commands[number // 2 % len(commands)] if number % 2 else generator.choices(
        commands, [1 + len(item.options) for item in commands])[0]
    words: list[str] = []
    taken: set[str] = set()
    certain, mistakes = False, []
    for _ in range(generator.choice((1, 1, 2))):
        kind, = generator.choices(list(MISTAKES), [weight for _, weight in MISTAKES.values()])
        outcome = MISTAKES[kind][0](generator, command, words, taken)
        if outcome is not None:
            certain |= outcome
            mistakes.append(kind)
        if kind == "option without a value":
            break
    if not mistakes:
        words.insert(0, "--no-such-option")
        certain, mistakes = True, ["name of an option"]
    path = list(command.path)
    if "path" in taken:
        path[-1] = _misspelt(generator, path[-1])
    needed = [generator.choice(item.samples) for item in command.options if not item.name and item.required
              and item.name not in taken]
    if any(item.name == "--output" for item in command.options) and "--output" not in taken:
        words.insert(0, "--output=out")  # if the run is legal, the user's results must stay
    return Case(module=command.module, command=command.name, words=(*path, *needed, *words), certain=certain,
                mistakes=tuple(mistakes))
