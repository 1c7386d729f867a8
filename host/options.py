"""Options of commands, declared as fields of sections that validate themselves.

Example
-------
::

    Nodes = Annotated[int, Option("Nodes in the ring, 1 to 16.")]

    @dataclasses.dataclass(frozen=True)
    class Links(Section):
        latency: int = option(16, help="Cycles of a link.", label="Link latency", minimum=1, maximum=1000)

    @command
    def run(links: Links, nodes: Nodes = 4) -> None:
        "Run it."

``typer.Typer().command()(run)`` has the options ``--latency`` and ``--nodes``.
"""

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from hdl.choices import choice_error
from host.arguments import Argument
from host.arguments import label as label_of

__all__ = ["COUNT", "SEEDS", "Option", "Section", "check_range", "command", "option", "with_sections"]

Result = TypeVar("Result")

#: Maximum of options that are numbers of steps, epochs, examples and the like.
COUNT = 1_000_000_000
#: Maximum of options that are seeds.
SEEDS = (1 << 63) - 1


def check_range(what: str, value: float | None, minimum: float, maximum: float) -> None:
    """Raise ``ValueError`` unless a number is in the range ``minimum`` to ``maximum``. None is accepted."""
    if value is not None and not (math.isfinite(value) and minimum <= value <= maximum):
        raise ValueError(f"{what} must be between {minimum:,} and {maximum:,}, not {value!r}")


@dataclasses.dataclass(frozen=True)
class Option:
    """Description of an option, stored in field metadata or in an ``Annotated`` type shared by commands."""

    #: Help text of the option: one or more sentences.
    help: str
    #: Names on the command line, such as ``--nodes`` and ``-n``, or ``--train/--no-train``; derived from the field's
    #: name by default.
    flags: tuple[str, ...] = ()
    #: Noun for the option in error messages; derived from the field's name by default.
    label: str | None = None
    #: Range of the value: both limits must be given, or neither.
    minimum: float | None = None
    maximum: float | None = None
    choices: Collection[str] | None = None
    #: Argument type that values are checked against. The command line checks its own values.
    kind: Argument | None = None
    #: Placeholder for the option's value in the help text.
    metavar: str | None = None
    #: Text to show in the help instead of the default value.
    shown_default: str | None = None

    def check(self, name: str, value: Any) -> Any:
        """Check the value of field ``name`` and convert it to the field's type; None is accepted. Raises
        ``TypeError`` if the type is wrong, and ``ValueError`` if the value is not allowed."""
        what = label_of(name) if self.label is None else self.label
        if self.kind is not None:
            return self.kind.take(what, value)
        if self.minimum is not None and self.maximum is not None:
            check_range(what, value, self.minimum, self.maximum)
        if self.choices is not None and value is not None and value not in self.choices:
            raise ValueError(choice_error(what, self.choices, value))
        return value

    def parameter(self, name: str, kind: Any, default: Any, *, panel: str | None = None) -> inspect.Parameter:
        """Convert the option to a function parameter that Typer understands."""
        import typer

        shown = "" if self.shown_default is None else f" [default: {self.shown_default}]"
        option = typer.Option(*self.flags, help=self.help + shown, metavar=self.metavar, rich_help_panel=panel,
                              show_default=not shown and default is not None)
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default,
                                 annotation=typing.Annotated[kind, option])


def option(default: Any, *flags: str, help: str = "", **description: Any) -> Any:
    """Create a :class:`Section` field with a default; arguments are the attributes of :class:`Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, flags, **description)})


def _shared(hint: Any) -> Option | None:
    """Return the :class:`Option` in an ``Annotated`` type, or None."""
    return next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Option)), None)


@dataclasses.dataclass(frozen=True)
class Section:
    """Base class of sections: options on one subject, validated when a section is created.

    A field is an option if it is created by :func:`option` or has an ``Annotated`` type with an :class:`Option`. A
    subclass with extra checks overrides ``__post_init__`` and calls the base class's method first.
    """

    #: Heading for the options in a command's help.
    panel: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        for name, described in self.options().items():
            object.__setattr__(self, name, described.check(name, getattr(self, name)))

    @classmethod
    @functools.cache
    def options(cls) -> dict[str, Option]:
        """Return the descriptions of the section's options, keyed by field name."""
        described = {field.name: field.metadata.get("option") or _shared(field.type)
                     for field in dataclasses.fields(cls)}
        return {name: option for name, option in described.items() if option is not None}


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _called(function: Callable[..., Result], parameters: Sequence[inspect.Parameter],
            sections: Mapping[str, type[Section]]) -> Callable[..., Result]:
    """Wrap a function so that it takes ``parameters`` and creates the sections, in order, from their values."""
    signature = inspect.Signature(parameters)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Result:
        try:
            bound = signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"{function.__name__}: {error}") from None
        bound.apply_defaults()
        values = bound.arguments
        made = {name: section(**{field.name: values.pop(field.name) for field in dataclasses.fields(section)})
                for name, section in sections.items()}
        return function(**values, **made)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def with_sections(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a function so that its sections are replaced by parameters for their fields.

    The sections are created, and thereby validated, in parameter order before the function is called. Raises
    ``ValueError`` if two parameters have the same name.
    """
    sections = {name: hint for name, hint in function.__annotations__.items() if _is_section(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        parameters += [parameter] if name not in sections else [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                              annotation=field.type) for field in dataclasses.fields(sections[name])]
    return _called(function, parameters, sections)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command's function like :func:`with_sections`, and turn the fields into Typer options.

    A parameter with an ``Annotated`` type that contains an :class:`Option` becomes that option. Other parameters,
    such as a ``typer.Context`` or an argument, are kept.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    shared = {name: described for name, hint in hints.items() if (described := _shared(hint)) is not None}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints[name]
        if _is_section(hint):
            plain = typing.get_type_hints(hint)
            parameters += [option.parameter(field, plain[field], getattr(hint, field), panel=hint.panel)
                           for field, option in hint.options().items()]
        elif name in shared:
            parameters.append(shared[name].parameter(name, hint.__origin__, parameter.default))
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def checked(**values: Any) -> None:
        function(**{**values, **{name: described.check(name, values[name]) for name, described in shared.items()}})

    call = _called(checked, parameters, {name: hint for name, hint in hints.items() if _is_section(hint)})
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
