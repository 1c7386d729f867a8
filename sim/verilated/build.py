"""The ring of Verilated nodes as a shared library, built when its sources change.

A library serves rings of any size, and nodes of several libraries can form one ring. It is complete in
``verilated/ring-<digest>`` of the cache; the digest covers all dependencies: Verilog, harness, flags and versions.
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

#: Verilator's own C++, compiled along with the design.
_RUNTIME = ("verilated.cpp", "verilated_threads.cpp", "verilated_save.cpp")
_TRACE_RUNTIME = ("verilated_fst_c.cpp",)
#: Headers that all sources of a library include, and that take most of the time of many sources.
_HEADERS = ("verilated.h", "verilated_save.h")
_TRACE_HEADERS = ("verilated_fst_c.h",)

_COMPILE = ("-std=gnu++20", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-DVL_TIME_CONTEXT",
            "-DVM_COVERAGE=0")
#: Higher levels compile for longer, and the simulation is no faster.
_FAST = ("-O1",)
#: For code that runs once, in the constructor or at the first evaluation; and for Verilator's own C++.
_SLOW, _ONCE = ("-O0",), ("-O1",)
#: Compiler options.
FLAGS = (*_COMPILE, *_FAST, *_SLOW, *_ONCE)


@dataclasses.dataclass(frozen=True)
class Library:
    """A built ring.

    Members
    -------
    path : Path
        The shared library.
    traced : bool
        Whether it can write waveforms.
    built : bool
        Whether this call built it, and not an earlier one.
    seconds : dict
        Time of this call, by stage: Verilog, Verilate, compile; the latter two only if it built the library.
    arithmetic : Arithmetic
        Whether floating-point units are simulated as gateware.
    memories : tuple
        The memory spaces of a node, in order, from the node's ``memories``.
    """

    path: Path
    traced: bool
    built: bool
    seconds: dict[str, float]
    arithmetic: Arithmetic = Arithmetic.GATEWARE
    memories: tuple[str | range, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of all dependencies of the library; simulator states belong to it."""
        return self.path.parent.name.removeprefix("ring-")


def build_ring(node: Component, *, traced: bool = False, batched: bool = True, identity: str | None = None,
               arithmetic: Arithmetic = Arithmetic.GATEWARE,
               announce: Callable[[str], None] = lambda stage: None) -> Library:
    """Build the ring of a node unless an earlier call did.

    Parameters
    ----------
    node : Component
        The node, with the ports of :class:`hdl.node.Node`. Memories that its ``memories`` names, if it has this
        member, can be reached without the node's port, where the generated code allows it: each is a submodule's
        memory, or a range of words in the far memory.
    traced : bool
        Build the slower library, which can write waveforms.
    batched : bool
        Evaluate the nodes of a thread together, function by function (:mod:`sim.verilated.batch`), where there is
        no waveform and the generated code allows it; a stage reports if not. Only the speed differs.
    identity : str or None
        Identity for :func:`~sim.verilated.verilog.convert`.
    arithmetic : Arithmetic
        Whether floating-point units are simulated as gateware. Only the speed differs.
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
    harness = {path.name: path.read_text() for path in (*sorted(_HERE.rglob("ring*.h")), _HERE / "ring.cpp")}
    harness[PORTS] = describe_ports({port.name: port.width for port in design.ports})
    functions = {HEADER: FUNCTIONS} if arithmetic is Arithmetic.NATIVE else {}
    patch = [toolchain.code(toolchain.text(_HERE / name)) for name in ["members.py", *["batch.py"] * batched]]
    shim = {path.name: path.read_text() for path in sorted((_HERE / "compression").iterdir())} if traced else {}
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


#: Inputs of the node that never change in a ring.
_TIED = {"rst": 0, "host_o__ready": 1}


def _ring_node(node: Design) -> str:
    """The node's Verilog, and a module around it that ties its constant inputs.

    A node begins as configured, so it needs no reset; the receiver of its responses is always ready. Verilator then
    leaves out all logic that waits for either, which is a third of the work of a cycle: nearly all of a node's
    logic depends on its reset, and is evaluated for each change of an input.
    """
    free = [port for port in node.ports if port.name not in _TIED]
    ports = ", ".join(f"{'input' if port.is_input else 'output'} [{port.width - 1}:0] {port.name}" for port in free)
    wires = ", ".join([f".{port.name}({port.name})" for port in free] +
                      [f".{name}(1'd{value})" for name, value in _TIED.items()])
    return f"{with_loops(node.text)}\nmodule ring_node({ports});\n  node node({wires});\nendmodule\n"


def options(name: str, top: str, *more: str) -> tuple[str, ...]:
    """Arguments of Verilator for the class V``name`` of module ``top``."""
    return ("--cc", "-O3", "--x-assign", "fast", "--x-initial", "fast", *more, "--prefix", f"V{name}", "--top-module",
            top, "--output-split", "50000", "--output-split-cfuncs", "1000",
            *(f"-Wno-{name}" for name in toolchain.WAIVED))


def compile_library(folder: Path, *, name: str = "ring", model: str = "node", traced: bool = False,
                    defines: Sequence[str] = (), before: Sequence[str] = ()) -> None:
    """Compile all C++ in ``folder``, a harness and class V``model``, into the library ``name``.so, on every core.

    ``defines`` are options of the compiler for the harness, and ``before`` headers that all sources begin with.
    """
    runtime = _runtime(traced)
    sources = [folder / f"{name}.cpp", *(folder / "obj").glob(f"V{model}*.cpp")]
    # The longest first, so that no core still compiles it at the end.
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
    """Folder with Verilator's own C++, compiled once for all libraries, and its precompiled headers.

    A compiler that cannot use a precompiled header reads the header itself.
    """
    sources = (*_RUNTIME, *_TRACE_RUNTIME) if traced else _RUNTIME
    headers = (*_HEADERS, *_TRACE_HEADERS) if traced else _HEADERS
    shim = {path.name: path.read_text() for path in sorted((_HERE / "compression").iterdir())} if traced else {}
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
