"""Component identity: a digest of everything that determines the gateware, without elaboration.

In many tests, elaboration takes as long as simulation. Its result depends on the component's class, the attributes
set by its constructor, the code of the modules that define them, with all their imports, and the values of the
modules' globals, which tests may have changed. Docstrings and comments are ignored. Configurations add the code of
their features, and format names add the code of the format's feature, since units are imported on creation. If any of
this cannot be determined, for example for a function without a name, the component has no identity and is elaborated.
"""

import ast
import collections
import enum
import functools
import importlib
import platform
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Elaboratable, Signal
from amaranth.lib.wiring import Component

from hdl.config import Configuration
from hdl.registry import FEATURES, feature_of_format
from sim.verilated import toolchain

__all__ = ["identity_of"]

#: Packages with modules that may define components: all packages next to the package of this module.
_PACKAGES = frozenset(path.name for path in toolchain.ROOT.iterdir() if path.is_dir() and path.name.isidentifier())
_SIMPLE = (bool, int, float, complex, str, bytes, range, type(None))
#: Built-in types whose content is not in attributes; their subclasses therefore cannot be described by attributes.
_PLAIN = (int, float, complex, str, bytes, list, tuple)
#: Maximum nesting depth at which module constants are described.
_DEPTH = 4


class _UnknownError(Exception):
    """Raised for an object that cannot be described in the same way in every process."""


def identity_of(component: Component) -> str | None:
    """Return a digest of a component's gateware and Amaranth's version, or None if it is unknown."""
    description = _Description()
    try:
        description.add(component)
        sources = sorted(set().union(*(_imported(name) for name in description.modules)))
        if any(toolchain.changed_since_start(_path(name)) for name in sources):
            return None
        # In other packages, only modules that define the classes and functions contribute their globals.
        watched = {name for name in sources if name.partition(".")[0] == "hdl"} | description.modules
        constants = [_globals(name) for name in sorted(watched)]
    except (_UnknownError, OSError, RecursionError):
        return None
    for used in description.used:
        used._MustUse__used = True
    return toolchain.digest(*description.parts, *(part for name in sources for part in (name, _source(name)[0])),
                            *constants, platform.python_version(), toolchain.version("amaranth"),
                            toolchain.version("numpy"))


class _Description:
    """Text that describes an object and everything it refers to; identical in every process.

    Members
    -------
    parts : list of str
    modules : set of str
        Modules of the project that define classes and functions in the text.
    used : list of Elaboratable
        Components that appear in the text.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.modules: set[str] = set()
        self.used: list[Any] = []
        self._known: dict[int, int] = {}
        self._alive: list[Any] = []

    def add(self, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self._name(type(value))
            self.parts.append(f"{value.name} {value.value!r}")  # combined flags have no common name
        elif type(value) in _SIMPLE:
            self.parts.append(f"{type(value).__name__} {value!r}")
            if isinstance(value, str) and value in _formats():
                self.modules.add(_plain(FEATURES[feature_of_format(value)].module))
        elif isinstance(value, tuple) and type(value) is tuple:
            self._sequence("tuple", value)
        elif id(value) in self._known:
            self.parts.append(f"again {self._known[id(value)]}")
        else:
            self._known[id(value)] = len(self._known)
            self._alive.append(value)
            self._new(value)

    def _new(self, value: Any) -> None:
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            self._name(value)
        elif type(value) in (list, collections.deque):
            self._sequence(type(value).__name__, value)
        elif isinstance(value, set | frozenset):
            self._sequence(f"set {type(value).__name__}", sorted(value, key=repr))
        elif isinstance(value, dict | types.MappingProxyType):
            self._sequence(f"dict {type(value).__name__}", [part for item in value.items() for part in item])
        elif isinstance(value, np.ndarray | np.generic):
            if value.dtype.hasobject:
                raise _UnknownError
            self.parts += [f"array {value.dtype} {value.shape}", toolchain.digest(value.tobytes())]
        elif isinstance(value, functools.partial):
            self._sequence("partial", [value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            self._sequence("method", [value.__func__, value.__self__])
        elif isinstance(value, Signal):
            shape = value.shape()
            self.parts.append(f"signal {value.name} {shape.width} {shape.signed} {value.init} {value.reset_less}")
            self.add(value.attrs)
        else:
            self._object(value)

    def _object(self, value: Any) -> None:
        if isinstance(value, Elaboratable):
            self.used.append(value)
        self._name(type(value))
        if (isinstance(value, _PLAIN) or
                (type(value).__module__ or "").partition(".")[0] not in (*_PACKAGES, "gradring", "amaranth")):
            raise _UnknownError
        if isinstance(value, Configuration):
            self.modules.update(_plain(FEATURES[name].module) for name in value.feature_names)
        for name, part in sorted(_state(value), key=lambda pair: pair[0]):
            self.parts.append(name)
            self.add(part)

    def _sequence(self, kind: str, values: Any) -> None:
        self.parts.append(f"{kind} {len(values)}")
        for value in values:
            self.add(value)

    def _function(self, value: Any) -> None:
        """Add a function that cannot be looked up by name in its module: its code and captured values."""
        if not isinstance(value, types.FunctionType):
            raise _UnknownError
        self._code(value.__code__)
        around = [cell.cell_contents for cell in value.__closure__ or ()]
        self._sequence("function", [value.__defaults__, value.__kwdefaults__, *around])

    def _code(self, code: types.CodeType) -> None:
        self.parts += [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self.add(constant)

    def _name(self, value: Any) -> None:
        """Add the name of a class or function."""
        module = value.__module__ or ""
        name = _plain(module)
        if not _is_named(value):
            self._function(value)
        if name.partition(".")[0] in _PACKAGES:
            self.modules.add(name)
        for base in getattr(value, "__mro__", ())[1:]:
            if _plain(base.__module__).partition(".")[0] in _PACKAGES:
                self.modules.add(_plain(base.__module__))
        self.parts.append(f"{name}:{value.__qualname__}")


def _is_named(value: Any) -> bool:
    """Return whether a class or function can be imported by its name."""
    target: Any = sys.modules.get(value.__module__ or "")
    for part in value.__qualname__.split("."):
        target = getattr(target, part, None)
    return target is value


@functools.cache
def _formats() -> frozenset[str]:
    """Return the names of all formats that belong to features."""
    return frozenset(name for entry in FEATURES.values() for name in entry.formats)


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Return an object's attributes, except its source location and creation order."""
    names = {**getattr(value, "__dict__", {})}
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{base.__name__.lstrip('_')}{slot}" if slot.startswith("__") else slot
            if hasattr(value, mangled):
                names[mangled] = getattr(value, mangled)
    for name, part in names.items():
        if not (name.endswith("src_loc") or name.startswith(("_MustUse__", "__")) or name == "duid"):
            yield name, part


def _plain(module: str) -> str:
    """Return a module's name as in a clone; in a wheel, these packages are inside ``gradring``."""
    head, _, rest = module.partition(".")
    return rest if head == "gradring" and rest.partition(".")[0] in _PACKAGES else module


@functools.cache
def _path(name: str) -> Path:
    path = toolchain.ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree, except code that only type checkers read."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _run(child)


@functools.cache
def _source(name: str) -> tuple[str, frozenset[str]]:
    """Return a module's source and the project modules, with their packages, that it imports anywhere."""
    tree = ast.parse(toolchain.text(_path(name)))
    imports: set[str] = set()
    is_package = _path(name).name == "__init__.py"
    for node in _run(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (name if is_package else name.rpartition(".")[0]).split(".")
            above = base[:len(base) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            imports.add(module)
            imports.update(f"{module}.{alias.name}" for alias in node.names)
    paths = [path for path in (imported.split(".") for imported in imports) if path[0] in _PACKAGES]
    return toolchain.code(tree), frozenset(module for path in paths for length in range(1, len(path) + 1)
                                           if _path(module := ".".join(path[:length])).is_file())


@functools.cache
def _imported(name: str) -> frozenset[str]:
    """Return a module and everything that it imports, directly or indirectly."""
    seen, left = set(), {name}
    while left:
        seen.add(module := left.pop())
        left |= _source(module)[1] - seen
    return frozenset(seen)


def _globals(name: str) -> str:
    """Return the current constants of a module, and the names of its functions and classes."""
    prefix = __name__.removesuffix("sim.verilated.identity")
    module = importlib.import_module(prefix + name)
    return repr([(key, _constant(value, _DEPTH)) for key, value in sorted(vars(module).items())
                 if not (key.startswith(("__", "@")) or isinstance(value, types.ModuleType))])


def _constant(value: Any, depth: int) -> Any:
    if type(value) in _SIMPLE:
        return value
    if depth and type(value) in (tuple, list):
        return [_constant(part, depth - 1) for part in value]
    if depth and type(value) is dict:
        return [[_constant(part, depth - 1) for part in item] for item in value.items()]
    if isinstance(value, types.FunctionType) and not _is_named(value):  # a lambda, or assigned from elsewhere
        description = _Description()
        description._function(value)
        return description.parts
    return f"{type(value).__qualname__} {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
