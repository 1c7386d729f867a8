"""Conversion of configurations to nested dictionaries (JSON) and to options with dotted names."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hdl.choices import choice_error
from hdl.config.node import Configuration, NodeConfig
from hdl.section import Part, Parts, Section, Types

__all__ = ["as_dict", "as_options", "from_dict", "name_of", "with_options"]

#: Configuration types of the core and of features.
_CONFIGURATIONS = Types(NodeConfig, field="configuration")


def name_of(kind: type) -> str:
    """Name of a section type as text: ``job_slots`` for JobSlots, ``node`` for NodeConfig."""
    return _text_of(kind.__name__)


def _text_of(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Config")).lower()


def as_dict(config: Configuration) -> dict[str, Any]:
    """Convert a configuration to a nested dictionary for JSON; ``kind`` is a section's type."""
    return {"kind": name_of(type(config)), **_fields(config)}


def _fields(part: Section) -> dict[str, Any]:
    domains = _domains(type(part))
    return {name: _value(domains[name], value) for name, value in part.said()}


def _domains(kind: type) -> dict[str, Any]:
    return {field.name: field.metadata["domain"] for field in dataclasses.fields(kind)}


def _value(domain: Any, value: Any) -> Any:
    if isinstance(domain, Parts):
        return [{"kind": name_of(type(part)), **_fields(part)} for part in value]
    if isinstance(domain, Part):
        kind = {"kind": name_of(type(value))} if len(domain.types) > 1 else {}
        return {**kind, **_fields(value)}
    return value


def from_dict(values: Mapping[str, Any]) -> Configuration:
    """Build a configuration from a nested dictionary; missing sections and fields get their defaults.

    Raises
    ------
    ValueError
        The dictionary contains an unknown section, an unknown field or an invalid value.
    """
    return _made(_CONFIGURATIONS, values, "Configuration")


def _made(kinds: Types, values: Any, title: str) -> Any:
    """Create a section from its fields, where ``kind`` selects one of several types."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{title} must be a table of fields, not {values!r}")
    kind = _kind(kinds, values.get("kind", _text_of(kinds.names[0])), title)
    domains, fields = _domains(kind), {name: value for name, value in values.items() if name != "kind"}
    for name in fields:
        if name not in domains:
            raise ValueError(choice_error(f"Field of {kind.__name__}", domains, str(name)))
    return kind(**{name: _read(domains[name], value, f"{kind.__name__}.{name}") for name, value in fields.items()})


def _kind(kinds: Types, name: Any, title: str) -> type:
    names = {_text_of(kind): kind for kind in kinds.names}
    if not isinstance(name, str) or name not in names:
        raise ValueError(choice_error(f"Kind of {title}", names, str(name)))
    return kinds.named(names[name])


def _read(domain: Any, value: Any, title: str) -> Any:
    if isinstance(domain, Parts):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{title} must be a list, not {value!r}")
        for part in value:
            if isinstance(part, Mapping) and "kind" not in part:
                raise ValueError(f"{title} must have a kind in each table, not {part!r}")
        return tuple(_made(domain.types, part, title) for part in value)
    if isinstance(domain, Part) and not (domain.optional and value is None):
        return _made(domain.types, value, title)
    return value


def as_options(config: Configuration) -> dict[str, Any]:
    """Values keyed by dotted name, in order: ``{"lanes": 4, "link": "credits", "link.ingress": 4}``."""
    return dict(_options(config, ""))


def _options(part: Section, prefix: str) -> Iterator[tuple[str, Any]]:
    domains = _domains(type(part))
    for name, value in part.said():
        domain, path = domains[name], f"{prefix}{name}"
        if isinstance(domain, Parts):
            yield path, ",".join(name_of(type(feature)) for feature in value)
        elif isinstance(domain, Part):
            if len(domain.types) > 1:
                yield path, name_of(type(value))
            elif domain.optional:
                yield path, True
            yield from _options(value, f"{path}.")
        else:
            yield path, value


def with_options(config: Configuration, options: Mapping[str, Any]) -> Configuration:
    """Copy a configuration with some values changed, keyed by dotted names as in :func:`as_options`.

    ``link=slots`` changes the type of a section, and ``link.ingress=5`` changes a field. ``programs=True`` adds a
    section, and ``programs=False`` removes it; setting a field of an absent section also adds the section.
    ``features=tenants,throttles`` replaces the list of features.

    Raises
    ------
    ValueError
        A name or a value is invalid.
    """
    possible = list(_names(type(config)))
    for name in options:
        if name not in possible:
            raise ValueError(choice_error("Option", possible, str(name), listed="docs/node.md"))
    domains, changes = _domains(type(config)), {}
    for section in dict.fromkeys(name.partition(".")[0] for name in options):
        domain = domains[section]
        fields = {name.partition(".")[2]: value for name, value in options.items() if name.startswith(f"{section}.")}
        if isinstance(domain, Part):
            changes[section] = _part(section, domain, getattr(config, section), options, fields)
        elif isinstance(domain, Parts):
            names = [name for name in str(options[section]).split(",") if name not in ("", "none")]
            changes[section] = tuple(_kind(domain.types, name, section)() for name in names)
        else:
            changes[section] = options[section]
    return config.replace(**changes)


def _names(kind: type) -> Iterator[str]:
    """Dotted names of all options of a configuration type."""
    for name, domain in _domains(kind).items():
        if not isinstance(domain, Part) or domain.optional or len(domain.types) > 1:
            yield name
        if isinstance(domain, Part):
            yield from dict.fromkeys(f"{name}.{field}" for part in domain.types for field in _domains(part))


def _part(name: str, domain: Part, old: Any, options: Mapping[str, Any], fields: dict[str, Any]) -> Any:
    """Return a section with its fields or its type changed as requested, or None if it is removed."""
    chosen = options.get(name)
    if domain.optional and not (chosen is None or isinstance(chosen, bool)):
        raise ValueError(f"Option {name} must be True or False, not {chosen!r}")
    if chosen is False:
        if fields:
            raise ValueError(f"Option {name}.{next(iter(fields))} must be left out with {name}=False")
        return None
    if chosen in (None, True):
        kind = domain.types.first if old is None else type(old)
    else:
        kind = _kind(domain.types, chosen, name)
    for field in fields:
        if field not in _domains(kind):
            raise ValueError(choice_error(f"Field of {name} {name_of(kind)}", _domains(kind), field))
    return old.replace(**fields) if type(old) is kind else kind(**fields)
