"""Sections of a configuration, which are frozen dataclasses with checked fields and a canonical text.

A section is a frozen dataclass with keyword-only fields. Each field is declared by :func:`option` with a domain,
which checks the value when a section is created. The ``repr`` contains all fields in order, without fields that
have their ``off`` value, so that adding a field later does not change the text of sections that do not use it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Self

from hdl.choices import choice_error
from hdl.registry import feature_of_section, section, section_names

__all__ = ["Domain", "Flag", "Integer", "Name", "OneOf", "Part", "Parts", "Section", "Types", "Words", "option"]

_NEVER = object()


def option(default: Any, domain: "Domain", *, off: Any = _NEVER) -> Any:
    """Declare a field of a section.

    Parameters
    ----------
    default : object
        Default value of the field.
    domain : Domain
        Valid values of the field.
    off : object
        Value for which the field is omitted from the section's text.
    """
    return dataclasses.field(default=default, metadata={"domain": domain, "off": off})


class Section:
    """Base class of all sections."""

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Section.__repr__  # type: ignore[method-assign]  # dataclasses keep an explicit one

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = field.metadata["domain"].checked(f"{type(self).__name__}.{field.name}", getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Raise ValueError if the values of several fields are incompatible."""

    def needs(self) -> Iterator[str]:
        """Yield the names of the features required by a node with this section, possibly with repetitions."""
        owner = feature_of_section(type(self).__name__)
        if owner is not None:
            yield owner
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            yield from field.metadata["domain"].needs(getattr(self, field.name))

    def said(self) -> Iterator[tuple[str, Any]]:
        """Names and values of all fields, in order, except for fields with their ``off`` value."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.metadata["off"]:
                yield field.name, value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.said())})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed values; a mapping changes the fields of a section, or creates it.

        Example: ``node.replace(lanes=8, memories={"gradient": 1024}, programs={})``.
        """
        values = {name: self._changed(name, change) if isinstance(change, Mapping) else change
                  for name, change in changes.items()}
        return dataclasses.replace(self, **values)  # type: ignore[type-var]

    def _changed(self, name: str, change: Mapping[str, Any]) -> Any:
        part = getattr(self, name)
        if part is not None:
            return part.replace(**change)
        field = next(field for field in dataclasses.fields(self) if field.name == name)  # type: ignore[arg-type]
        return field.metadata["domain"].types.first(**change)


class Domain:
    """Base class of domains: sets of values that a field may have.

    Members
    -------
    text : str
        Description of a valid value.
    """

    text: str

    def __contains__(self, value: Any) -> bool:
        raise NotImplementedError

    def checked(self, label: str, value: Any) -> Any:
        """Return the value in canonical form; ``label`` names the field in errors.

        Raises
        ------
        ValueError
            If the value is not in the domain.
        """
        if value not in self:
            raise ValueError(f"{label} must be {self.text}, not {value!r}")
        return value

    def needs(self, value: Any) -> Iterable[str]:
        """Yield the names of the features that a value of the domain requires."""
        return ()


def _either(names: Iterable[Any]) -> str:
    """Join names for use in a sentence, as in ``1, 2 or 4``."""
    *first, last = map(str, names)
    return f"{', '.join(first)} or {last}" if first else last


class OneOf(Domain):
    """Domain of an explicit list of integers."""

    def __init__(self, *values: int) -> None:
        self._values, self.text = values, _either(values)

    def __contains__(self, value: Any) -> bool:
        return type(value) is int and value in self._values


class Integer(Domain):
    """Domain of the integers from ``low`` to ``high``, or of all integers from ``low`` on."""

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low, self._high = low, high
        self.text = f"at least {low}" if high is None else f"between {low} and {high}"

    def __contains__(self, value: Any) -> bool:
        return type(value) is int and self._low <= value and (self._high is None or value <= self._high)


class Words(Domain):
    """Domain of memory capacities: positive multiples of 32 and, if ``optional``, also 0."""

    def __init__(self, *, optional: bool = False, high: int = 1 << 24) -> None:
        self._low, self._high = 0 if optional else 32, high
        self.text = f"0, or a multiple of 32 up to {high}" if optional else f"a multiple of 32 between 32 and {high}"

    def __contains__(self, value: Any) -> bool:
        return type(value) is int and value % 32 == 0 and self._low <= value <= self._high


class Flag(Domain):
    """Domain of the Boolean values True and False."""

    text = "True or False"

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, bool)


class Name(Domain):
    """Domain of the names in a collection, to which names may be added later."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"one of {', '.join(self._names)}"

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, str) and value in self._names

    def checked(self, label: str, value: Any) -> str:
        if value not in self:
            raise ValueError(choice_error(label, self._names, str(value)))
        return str.__str__(value)


class Types:
    """Collection of section types. Types that features define are listed by name and imported when first used.

    Parameters
    ----------
    core : type
        Types that the core defines.
    field : str, optional
        Field of a configuration for which features may add types.
    among : collection of str, optional
        Names of feature-defined types to include; by default all.
    """

    def __init__(self, *core: type, field: str | None = None, among: Collection[str] | None = None) -> None:
        self._core, self._field, self._among = core, field, among

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all section types in the collection."""
        added = () if self._field is None else section_names(self._field)
        return (*(cls.__name__ for cls in self._core),
                *(name for name in added if self._among is None or name in self._among))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[type]:
        return map(self.named, self.names)

    def __contains__(self, kind: object) -> bool:
        return getattr(kind, "__name__", None) in self.names and self.named(kind.__name__) is kind  # type: ignore[attr-defined]

    def named(self, name: str) -> type:
        """Return the type with a given name."""
        return next((cls for cls in self._core if cls.__name__ == name), None) or section(name)

    @property
    def first(self) -> type:
        """Default type of a section, for changes that give fields but no type."""
        return self.named(self.names[0])


class Part(Domain):
    """Domain of sections of certain types, and of None if ``optional``. For parameters, see :class:`Types`."""

    def __init__(self, *types: type, optional: bool = False, field: str | None = None,
                 among: Collection[str] | None = None) -> None:
        self.types, self.optional = Types(*types, field=field, among=among), optional

    @property
    def text(self) -> str:  # type: ignore[override]
        return _either([*(["None"] if self.optional else []), *(f"{name}()" for name in self.types.names)])

    def __contains__(self, value: Any) -> bool:
        return type(value) in self.types or (self.optional and value is None)

    def needs(self, value: Any) -> Iterable[str]:
        return () if value is None else value.needs()


class Parts(Domain):
    """Domain of tuples of sections, each of a different type, sorted by name."""

    def __init__(self, *types: type, field: str | None = None, among: Collection[str] | None = None) -> None:
        self.types = Types(*types, field=field, among=among)

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"a tuple of some of {', '.join(f'{name}()' for name in self.types.names)}"

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, tuple) and all(type(part) in self.types for part in value)

    def checked(self, label: str, value: Any) -> tuple[Any, ...]:
        parts = super().checked(label, value)
        kinds = [type(part) for part in parts]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(f"{label} must have {kind.__name__}() once, not {value!r}")
        return tuple(sorted(parts, key=lambda part: type(part).__name__))

    def needs(self, value: Any) -> Iterable[str]:
        return (name for part in value for name in part.needs())
