"""Options declared as fields of sections: their Typer parameters, their checks, and the help of all commands."""

import dataclasses
import enum
import inspect
from typing import Annotated

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from host.arguments import Integer, Member
from host.cli import app
from host.commands.registry import COMMANDS
from host.labs.registry import LABS
from host.make import commands as make
from host.options import Option, Section, check_range, command, option, with_sections
from tests.refusals import refused, refuses

RUNNER = CliRunner()


class Way(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


Count = Annotated[int, Option("Count of items.", minimum=1, maximum=9)]


@dataclasses.dataclass(frozen=True)
class Links(Section):
    panel = "Links"

    latency: int = option(16, help="Cycles of a link.", label="Link latency", minimum=1, maximum=1000)
    rate: float | None = option(None, "--link-rate", help="Words per cycle.", shown_default="all links have 1")
    codec: str = option("raw", help="Codec.", choices=("raw", "mx9"), metavar="NAME")
    way: Way = option(Way.FAST, help="Way.")
    direct: bool = option(False, "--direct/--by-host", help="Path of words.")
    items: Count = 2

    def __post_init__(self):
        super().__post_init__()
        if self.direct and self.rate is not None:
            raise ValueError("Option --link-rate is for a run without --direct: leave it out")


def run(arguments, function):
    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command()(function)
    return RUNNER.invoke(program, arguments)


def test_call():
    """The function of a command receives its sections and other parameters from the command line."""
    calls = []

    @command
    def work(context: typer.Context, name: Annotated[str, typer.Argument()], links: Links, count: Count = 3) -> None:
        calls.append((name, links, count, context.get_parameter_source("latency").name))

    assert run(["a"], work).exit_code == 0
    assert run(["b", "--latency", "20", "--link-rate", "0.5", "--way", "slow", "--items", "4", "--count", "5"],
               work).exit_code == 0
    assert run(["c", "--direct"], work).exit_code == 0
    assert calls == [("a", Links(), 3, "DEFAULT"),
                     ("b", Links(latency=20, rate=0.5, way=Way.SLOW, items=4), 5, "COMMANDLINE"),
                     ("c", Links(direct=True), 3, "DEFAULT")]


test_section_checks_itself = refused(Links, {}, [
    ({"latency": 0}, "Link latency must be between 1 and 1,000, not 0"),
    ({"latency": 1001}, "Link latency must be between 1 and 1,000, not 1001"),
    ({"codec": "mx8"}, "Codec must be one of raw, mx9, not 'mx8': did you mean mx9?"),
    ({"items": 10}, "Items must be between 1 and 9, not 10"),
    ({"direct": True, "rate": 1.0}, "Option --link-rate is for a run without --direct: leave it out")])


def test_command_checks_before_call():
    @command
    def work(links: Links, count: Count = 3) -> None:
        raise AssertionError

    for arguments, message in ((["--latency", "0"], "Link latency must be between 1 and 1,000, not 0"),
                               (["--count", "0"], "Count must be between 1 and 9, not 0")):
        assert str(run(arguments, work).exception) == message


def test_help():
    """Help texts, names, defaults and panels of options come from the fields of sections."""
    @command
    def work(count: Count = 3, links: Links = Links()) -> None:
        """Do it."""

    text = " ".join(run(["--help"], work).output.split())
    for part in ("Do it.", "--count <int> Count of items. [default: 3]", "--latency <int> Cycles of a link. "
                 "[default: 16]", "--link-rate <float> Words per cycle. [default: all links have 1]",
                 "--codec NAME Codec. [default: raw]", "--way <fast|slow> Way. [default: fast]",
                 "--direct / --by-host Path of words. [default: by-host]"):
        assert part in text
    assert list(inspect.signature(work).parameters) == ["count", "latency", "rate", "codec", "way", "direct", "items"]
    program = typer.Typer()
    program.command()(work)
    rows = make._of_typer(typer.main.get_command(program))
    assert rows["--link-rate"]["text"] == "Words per cycle. [default: all links have 1]"
    assert rows["--direct"]["values"] == {"1": ["--direct"], "0": ["--by-host"]}
    assert [rows[name].get("section") for name in ("--count", "--latency", "--items")] == [None, "Links", "Links"]


@dataclasses.dataclass(frozen=True)
class Speed(Section):
    threads: int = option(1, kind=Integer(1))
    way: Way = option(Way.FAST, kind=Member(Way))


def test_with_sections():
    """The fields of sections become parameters of a function, with types, defaults and checks."""
    @with_sections
    def work(name: str, *, count: int = 2, speed: Speed) -> tuple[str, int, Speed]:
        return name, count, speed

    assert str(inspect.signature(work)).replace("tests.host.test_options.", "") == (
        "(name: str, *, count: int = 2, threads: int = 1, way: Way = <Way.FAST: 'fast'>)")
    assert work("a") == ("a", 2, Speed())
    assert work(name="b", threads=np.int64(3), way=Way.SLOW, count=4) == ("b", 4, Speed(3, Way.SLOW))
    assert type(work("a", threads=np.int64(3))[2].threads) is int
    for values, error, message in (
            ({"threads": "2"}, TypeError, "Threads must be an integer of at least 1, not '2'"),
            ({"threads": 0}, ValueError, "Threads must be an integer of at least 1, not 0"),
            ({"speed": Speed()}, TypeError, "work: got an unexpected keyword argument 'speed'"),
            ({"thread": 2}, TypeError, "work: got an unexpected keyword argument 'thread'")):
        refuses(message, work, "a", **values, error=error)


def test_two_options_of_one_name():
    with pytest.raises(ValueError, match="duplicate parameter name: 'latency'"):
        @command
        def work(links: Links, latency: int = 3) -> None:
            """Do it."""
    with pytest.raises(ValueError, match="duplicate parameter name: 'latency'"):
        @with_sections
        def other(*, links: Links, latency: int = 3) -> None:
            """Do it."""


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, 10])
def test_check_range(value):
    refuses(f"Items must be between 1 and 9, not {value!r}", check_range, "Items", value, 1, 9)
    check_range("Items", 1, 1, 9)
    check_range("Items", 9, 1, 9)
    check_range("Items", None, 1, 9)


@pytest.mark.parametrize("name", [*COMMANDS, *(f"lab {name}" for name in LABS)])
def test_command_help(name):
    """All options of all commands have help texts."""
    command = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    assert all(parameter.help for parameter in command.params if parameter.opts != ["--help"]), name
