"""Prevent a script's own files from hiding a clone's packages hdl, sim, host and boards.

The packages of a clone have short names, which a script's own ``sim.py`` or an entry of ``PYTHONPATH`` would hide.
gradring imports this module first. It installs a finder at the front of ``sys.meta_path``, so that gradring's code,
``importlib.import_module`` and ``python -m`` always import the clone's packages. A script's own module with one of
these names is imported as, for example, ``_gradring_script.sim``. In an installed wheel, the packages are inside
gradring, and this module does nothing.

``python -P names.py MODULE ARGUMENTS`` runs a module of the clone like ``python -m``, from any folder.
"""

import builtins
import importlib
import importlib.machinery
import importlib.util
import itertools
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["PACKAGES", "install"]

PACKAGES = ("hdl", "sim", "host", "boards")

#: Package for a script's own modules that have the same name as a package of the clone.
_SCRIPT = "_gradring_script"

_ROOT = Path(__file__).resolve().parent.parent

#: Folders with the clone's code.
_FOLDERS = tuple(f"{_ROOT / name}/" for name in (*PACKAGES, "gradring"))

_builtin_import = builtins.__import__


class _Finder:
    """Import finder for the clone's packages."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """Find one of the clone's packages, from which its modules are then imported."""
        return importlib.machinery.PathFinder.find_spec(name, [str(_ROOT)]) if name in PACKAGES else None


def _search_path() -> list[str]:
    """Return the entries of ``sys.path`` that come before the clone's folder, where the script's modules are
    found."""
    return list(itertools.takewhile(lambda entry: Path(entry).resolve() != _ROOT, sys.path))


def _hides(name: str) -> bool:
    """Whether the script has its own module with this name, in its folder or elsewhere on its path."""
    package = sys.modules.setdefault(_SCRIPT, ModuleType(_SCRIPT))
    package.__path__ = _search_path()
    if f"{_SCRIPT}.{name}" in sys.modules:
        return True
    spec = importlib.machinery.PathFinder.find_spec(name, package.__path__)
    return spec is not None and spec.loader is not None  # a folder without files is not a module


def _import(name: str, globals: Mapping[str, Any] | None = None, locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (), level: int = 0) -> ModuleType:
    """Replacement for ``__import__``: a script that imports one of the names gets its own module."""
    caller = globals or {}
    package = str(caller.get("__package__") or "")
    wanted = name
    if level and package.partition(".")[0] in PACKAGES:  # in a module that was loaded before gradring
        wanted = importlib.util.resolve_name("." * level + name, package)
    elif level:
        return _builtin_import(name, globals, locals, fromlist, level)
    top = wanted.partition(".")[0]
    own = not caller or str(caller.get("__file__")).startswith(_FOLDERS)  # runpy and importlib pass no globals
    if top not in PACKAGES or own or not _hides(top):
        return _builtin_import(name, globals, locals, fromlist, level)
    module = importlib.import_module(f"{_SCRIPT}.{wanted}")
    for part in fromlist or ():
        if hasattr(module, "__path__") and not hasattr(module, part) and part != "*":
            _import_part(f"{_SCRIPT}.{wanted}.{part}")
    return module if fromlist else sys.modules[f"{_SCRIPT}.{top}"]


def _import_part(name: str) -> None:
    """Import a module of the script if it exists."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise


def _is_own(module: ModuleType) -> bool:
    """Whether a module was loaded from this clone of gradring."""
    files = [getattr(module, "__file__", None) or "", *(f"{path}/" for path in getattr(module, "__path__", ()))]
    return any(file.startswith(_FOLDERS) for file in files)


def install(*, always: bool = False) -> None:
    """Make gradring's code import the clone's packages in this process.

    With ``always``, every later import is checked, even if no module hides a package at present: the script's folder
    may not be known yet.
    """
    if (Path(__file__).parent / PACKAGES[0]).is_dir():  # in a wheel
        return
    if not any(finder is _Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
    # Modules that a script has already imported remain the script's own.
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in PACKAGES and not _is_own(module):
            sys.modules[f"{_SCRIPT}.{name}"] = sys.modules.pop(name)
    if always or any(map(_hides, PACKAGES)):
        builtins.__import__ = _import  # type: ignore[assignment]


install()

if __name__ == "__main__":
    install(always=True)
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
