"""Build a ring's Verilated nodes as a shared library, and rebuild it whenever its sources change.

A library works for rings of any size, and a ring may combine nodes of several libraries. It is cached as
``verilated/ring-<digest>``; the digest covers all dependencies: Verilog, harness, flags and versions.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from amaranth.lib.wiring import Component

from sim.verilated import toolchain
from sim.verilated.batch import batch
from sim.verilated.members import find_members
from sim.verilated.native import FUNCTIONS, HEADER, Arithmetic
from sim.verilated.ports import HEADER as PORTS
from sim.verilated.ports import describe_ports
from sim.verilated.verilog import Design, convert, with_loops

__all__ = ["FLAGS", "Library", "build_ring", "compile_library", "options"]

_HERE = Path(__file__).parent

#: Verilator's own C++ sources, which are compiled together with the design.
_RUNTIME = ("verilated.cpp", "verilated_threads.cpp", "verilated_save.cpp")
_TRACE_RUNTIME = ("verilated_fst_c.cpp",)
#: Headers that all sources include and that dominate the compile time of many sources.
_HEADERS = ("verilated.h", "verilated_save.h")
_TRACE_HEADERS = ("verilated_fst_c.h",)

_COMPILE = ("-std=gnu++20", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-DVL_TIME_CONTEXT",
            "-DVM_COVERAGE=0")
#: Higher levels compile more slowly without making the simulation faster.
_FAST = ("-O1",)
#: Optimization levels for code that runs once, in constructors or the first evaluation, and for Verilator's own C++.
_SLOW, _ONCE = ("-O0",), ("-O1",)
#: Compiler options for all sources.
FLAGS = (*_COMPILE, *_FAST, *_SLOW, *_ONCE)


@dataclasses.dataclass(frozen=True)
class Library:
    """A shared library of Verilated ring nodes.

    Members
    -------
    path : Path
        Path of the library.
    traced : bool
        Whether it can write waveforms.
    built : bool
        Whether it was built by this call rather than an earlier one.
    seconds : dict
        Seconds that this call took, keyed by stage: Verilog, Verilate, compile (the last two only if it was built).
    arithmetic : Arithmetic
        Whether floating-point units are simulated as gateware.
    memories : tuple
        Memory spaces of a node, in the order of its ``memories``.
    """

    path: Path
    traced: bool
    built: bool
    seconds: dict[str, float]
    arithmetic: Arithmetic = Arithmetic.GATEWARE
    memories: tuple[str | range, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of all dependencies of the library, which saved simulator states refer to."""
        return self.path.parent.name.removeprefix("ring-")


def build_ring(node: Component, *, traced: bool = False, batched: bool = True, identity: str | None = None,
               arithmetic: Arithmetic = Arithmetic.GATEWARE,
               announce: Callable[[str], None] = lambda stage: None) -> Library:
    """Build the library for rings of a node, unless it is already cached.

    Parameters
    ----------
    node : Component
        The node, with the ports of :class:`hdl.node.Node`. If it has a member ``memories``, the memories listed there
        can be accessed directly if the generated code allows it. Each is the memory of a submodule or a range of
        words in the far memory.
    traced : bool
        Build the slower library, which can write waveforms.
    batched : bool
        Evaluate the nodes of a thread together, function by function (:mod:`sim.verilated.batch`), if the library is
        not traced and the generated code allows it; otherwise, a stage reports why not. Affects only the speed.
    identity : str or None
        Identity for :func:`~sim.verilated.verilog.convert`.
    arithmetic : Arithmetic
        How floating-point units are simulated. Affects only the speed.
    announce : callable
        Called with the name of each stage as it begins.
    """
    seconds = {}

    def stage(name: str) -> float:
        announce(name)
        return time.monotonic()

    begun = stage("Verilog")
    design = convert(node, name="node", identity=identity, arithmetic=arithmetic)
    verilog = _ring_node(design)
    seconds["Verilog"] = time.monotonic() - begun

    spaces: tuple[str | range, ...] = tuple(getattr(node, "memories", ()))
    memories = [name for name in spaces if isinstance(name, str)]
    batched = batched and not traced
    harness = toolchain.sources([*sorted(_HERE.rglob("ring*.h")), _HERE / "ring.cpp"])
    harness[PORTS] = describe_ports({port.name: port.width for port in design.ports})
    functions = {HEADER: FUNCTIONS} if arithmetic is Arithmetic.NATIVE else {}
    patch = [toolchain.code(toolchain.text(_HERE / name)) for name in ["members.py", *["batch.py"] * batched]]
    shim = toolchain.sources(sorted((_HERE / "compression").iterdir())) if traced else {}
    verilate = options("node", "ring_node", "--savable")
    verilate = (*verilate, "--trace-fst") if traced else verilate
    flags = (*verilate, *FLAGS, str(traced), str(batched), *memories)
    key = toolchain.digest(verilog, repr(harness), repr(functions), repr(patch), repr(shim), repr(flags),
                           toolchain.version("verilator"), toolchain.target(),
                           toolchain.source(build_ring, compile_library, _compiler))
    directory = toolchain.cache_folder("verilated") / f"ring-{key}"

    def build(folder: Path) -> None:
        for name, text in {"node.v": verilog, **harness, **functions}.items():
            (folder / name).write_text(text)
        (folder / "compression").mkdir()
        for name, text in shim.items():
            (folder / "compression" / name).write_text(text)

        begun = stage("Verilate")
        verilator = str(toolchain.verilator() / "bin" / "verilator")
        toolchain.run([verilator, *verilate, "-Mdir", "obj", "node.v"], cwd=folder, env=toolchain.environment())
        seconds["Verilate"] = time.monotonic() - begun
        together = batched and batch(folder / "obj", "node")
        if batched and not together:
            stage("nodes one after the other, since the code that Verilator made is not one list of functions")
        find_members(folder / "obj", "node", "ring_node.node", memories)

        begun = stage("compile")
        compile_library(folder, traced=traced, defines=[f"-DRING_BATCHED={int(together)}"], before=[*functions])
        seconds["compile"] = time.monotonic() - begun

    toolchain.cached(directory, build, announce=announce)
    return Library(directory / "ring.so", traced, "compile" in seconds, seconds, arithmetic, spaces)


#: Node inputs that are constant in a ring.
_TIED = {"rst": 0, "host_o__ready": 1}


def _ring_node(node: Design) -> str:
    """Return the node's Verilog, with a wrapper module that ties off constant inputs.

    A node starts in its initial state, so it needs no reset, and its responses are always accepted. Verilator then
    removes the logic for both, which saves a third of the work per cycle: nearly all logic depends on the reset and
    would be evaluated whenever an input changes.
    """
    free = [port for port in node.ports if port.name not in _TIED]
    ports = ", ".join(f"{'input' if port.is_input else 'output'} [{port.width - 1}:0] {port.name}" for port in free)
    wires = ", ".join([f".{port.name}({port.name})" for port in free] +
                      [f".{name}(1'd{value})" for name, value in _TIED.items()])
    return f"{with_loops(node.text)}\nmodule ring_node({ports});\n  node node({wires});\nendmodule\n"


def options(name: str, top: str, *more: str) -> tuple[str, ...]:
    """Return the Verilator arguments for class V``name`` of module ``top``."""
    return ("--cc", "-O3", "--x-assign", "fast", "--x-initial", "fast", *more, "--prefix", f"V{name}", "--top-module",
            top, "--output-split", "50000", "--output-split-cfuncs", "1000",
            *(f"-Wno-{name}" for name in toolchain.WAIVED))


def compile_library(folder: Path, *, name: str = "ring", model: str = "node", traced: bool = False,
                    defines: Sequence[str] = (), before: Sequence[str] = ()) -> None:
    """Compile the harness and class V``model`` in ``folder`` into ``name``.so, using every core.

    ``defines`` are compiler options for the harness; ``before`` are headers that all sources include first.
    """
    runtime = _runtime(traced)
    sources = [folder / f"{name}.cpp", *(folder / "obj").glob(f"V{model}*.cpp")]
    # Compile the largest sources first, so that none of them is left over at the end.
    sources.sort(key=lambda path: path.stat().st_size, reverse=True)

    def compile_one(source: Path) -> str:
        level = _SLOW if "__Slow" in source.name else _FAST
        extra = defines if source.name == f"{name}.cpp" else ()
        result = f"{source.stem}.o"
        toolchain.run([*_compiler(level, traced), *extra, "-include", str(runtime / _header(level)),
                       *(part for header in before for part in ("-include", header)), "-I.", "-Iobj",
                       "-Icompression", "-c", str(source), "-o", result], cwd=folder)
        return result

    objects = toolchain.in_parallel(compile_one, sources)
    objects += [str(path) for path in sorted(runtime.glob("*.o"))]
    toolchain.run([toolchain.compiler(), "-shared", *objects, "-pthread", "-o", f"{name}.so"], cwd=folder)


def _compiler(level: tuple[str, ...], traced: bool) -> list[str]:
    include = toolchain.verilator() / "include"
    return [toolchain.compiler(), *_COMPILE, *level, f"-DVM_TRACE={int(traced)}", f"-isystem{include}",
            f"-isystem{include / 'vltstd'}"]


def _header(level: tuple[str, ...]) -> str:
    return f"runtime{''.join(level)}.h"


def _runtime(traced: bool) -> Path:
    """Return the folder with precompiled headers and Verilator's own C++, compiled once for all libraries.

    Compilers that cannot use a precompiled header fall back to the original one.
    """
    sources = (*_RUNTIME, *_TRACE_RUNTIME) if traced else _RUNTIME
    headers = (*_HEADERS, *_TRACE_HEADERS) if traced else _HEADERS
    shim = toolchain.sources(sorted((_HERE / "compression").iterdir())) if traced else {}
    key = toolchain.digest(repr(FLAGS), repr(sources), repr(headers), repr(shim), str(traced),
                           toolchain.version("verilator"), toolchain.target(), toolchain.source(_runtime, _compiler))

    def build(folder: Path) -> None:
        text = "".join(f"#include <{header}>\n" for header in headers)
        commands = []
        for level in (_FAST, _SLOW):
            header = _header(level)
            (folder / header).write_text(text)
            commands.append([*_compiler(level, traced), f"-I{_HERE / 'compression'}", "-x", "c++-header", header,
                             "-o", f"{header}.gch"])
        include = toolchain.verilator() / "include"
        commands += [[*_compiler(_ONCE, traced), f"-I{_HERE / 'compression'}", "-c", str(include / source), "-o",
                      f"{Path(source).stem}.o"] for source in sources]
        toolchain.in_parallel(lambda command: toolchain.run(command, cwd=folder), commands)

    return toolchain.cached(toolchain.cache_folder("verilated") / f"ring-runtime-{key}", build)
