"""Run cocotb tests of a single component on Verilator.

Example
-------
A test module contains tests that pytest collects, and decorated tests that cocotb runs inside the simulator. The
names of the latter do not begin with ``test``::

    @cocotb.test(timeout_time=1, timeout_unit="ms")
    async def keeps_order(dut):
        depth = regression.parameters()["depth"]
        ...

    @pytest.mark.parametrize("depth", [1, 2, 5])
    def test_queue(depth):
        regression.run(Queue(shape=word_layout(), depth=depth), module=__name__, parameters={"depth": depth})

The simulator is built once per design and tool version, and runs in a separate process (:mod:`sim.simulations`). See
:mod:`sim.streams` for drivers.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amaranth.lib.wiring import Component
from cocotb_tools import config
from cocotb_tools.check_results import get_results

from sim import json_files, simulations
from sim.verilated import toolchain
from sim.verilated.verilog import Design, convert, with_loops

__all__ = ["parameters", "run"]

_TAIL = 80

#: Compiler optimization level of the design. Tests use a low level: a large unit would take ten times as long to
#: compile, and in a simulation of a small unit, most of the time is spent in cocotb.
OPTIMIZATION = "-Os"

_RUNTIME = ("verilated", "verilated_threads", "verilated_vpi")
_INCLUDED = ("verilated.h", "verilated_vpi.h", "memory", "string")


def parameters() -> dict[str, Any]:
    """Return the parameters passed to :func:`run`; called inside the simulator."""
    result: dict[str, Any] = json_files.parse_product(os.environ[simulations.PARAMETERS])
    return result


def _control_file(design: Design) -> str:
    """Verilator control file that makes only the ports visible.

    Amaranth's Verilog has many wires, and a simulation with all of them visible is several times slower.
    """
    lines = ["`verilator_config"]
    for port in design.ports:
        access = "public_flat_rw" if port.is_input else "public_flat_rd"
        lines.append(f'{access} -module "{design.name}" -var "{port.name}"')
    return "\n".join([*lines, ""])


#: C++ source that turns cocotb's main program for Verilator into a library function, and adds a function for the end
#: of a simulation. All memory is cleared, as in a fresh process, since Verilator does not initialize all of it.
_MAIN = """\
#include <cstdlib>
#include <cstring>
#include <new>
__attribute__((visibility("hidden"))) void* operator new(std::size_t size, std::align_val_t alignment) {{
    const auto unit = static_cast<std::size_t>(alignment);
    if (void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return std::memset(memory, 0, size);
    throw std::bad_alloc{{}};
}}
extern "C" int simulate(int, char**);
#define main simulate
#include "{main}"
#undef main
extern "C" int simulation_end() {{
#if VM_TRACE
    if (tfp) tfp->close();
#endif
    return Verilated::threadContextp()->errorCount();
}}
"""


def _build(design: Design, *, waves: bool) -> Path:
    text, control = with_loops(design.text), _control_file(design)
    flags = (OPTIMIZATION, "-fPIC", "-pthread", "-std=gnu++17", "-DCOCOTB_SIM=1", "-DVM_COVERAGE=0",
             f"-DVM_TRACE={int(waves)}")
    main = _MAIN.format(main=config.share_dir / "lib" / "verilator" / "verilator.cpp")
    key = toolchain.digest(design.name, text, control, main, repr(flags), repr(toolchain.VERILATE),
                           toolchain.version("verilator"), toolchain.version("cocotb"), toolchain.target(),
                           toolchain.source(toolchain.compiled))

    def build(folder: Path) -> None:
        (folder / f"{design.name}.v").write_text(text)
        (folder / "ports.vlt").write_text(control)
        traced = ["--trace"] if waves else []
        toolchain.run([str(toolchain.verilator() / "bin" / "verilator"), "--cc", "--vpi", *traced, "--timescale",
                       "1ns/1ps", *toolchain.VERILATE, "--prefix", "Vtop", "--top-module", design.name, "-Mdir",
                       "obj", "ports.vlt", f"{design.name}.v"], cwd=folder, env=toolchain.environment())
        toolchain.compiled(
            folder, main, flags=flags, level="-Os", included=_INCLUDED,
            runtime=(*_RUNTIME, "verilated_vcd_c") if waves else _RUNTIME,
            linked=(f"-Wl,-rpath,{config.libs_dir}", f"-L{config.libs_dir}", "-lcocotbvpi_verilator"))

    return toolchain.cached(toolchain.cache_folder("regression") / f"{design.name}-{key}", build)


def _filter(testcase: str | Sequence[str] | None) -> str | None:
    """Regular expression that matches full test names, in the form that cocotb's own runner uses."""
    if testcase is None:
        return None
    names = [testcase] if isinstance(testcase, str) else testcase
    return r"\.(" + "|".join(rf".*{re.escape(name)}" for name in names) + ")$"


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:]) if log.exists() else "(no log)"


def run(component: Component | Design, *, module: str, name: str | None = None,
        testcase: str | Sequence[str] | None = None, parameters: Mapping[str, Any] | None = None, seed: int = 1,
        waves: bool = False) -> None:
    """Run a module's cocotb tests on a component; if one fails, fail with the simulation's log.

    Parameters
    ----------
    component : Component or Design
        Component under test, or its Verilog, which already has a name.
    module : str
        Module that contains the tests, as imported from the repository root: ``__name__`` of a test file.
    name : str or None
        Name of the design's top module; by default the name of the component's class.
    testcase : str, sequence of str or None
        Tests to run; all by default.
    parameters : mapping or None
        JSON values that the tests read with :func:`parameters`.
    seed : int
        Seed for cocotb's random module.
    waves : bool
        Whether to keep ``dump.vcd`` next to the simulator; the log gives the folder.
    """
    design = (component if isinstance(component, Design)
              else convert(component, name=name or type(component).__name__))
    folder = _build(design, waves=waves)
    runs = toolchain.BUILD / "regression"
    runs.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{design.name}-", dir=runs))
    log = work / "simulation.log"
    text = json.dumps(dict(parameters or {}))
    status = simulations.simulate(simulations.Simulation(
        library=str(folder / "library.so"), top=design.name, module=module, tests=_filter(testcase), parameters=text,
        seed=seed, folder=str(work), waves=waves))
    failure = f"The simulation ended with status {status}" if status else ""
    try:
        count, failed = get_results(work / "results.xml")
        if failed or not count:
            failure = f"{failed} of {count} cocotb tests failed"
    except RuntimeError:
        failure = failure or "The simulation left no results"
    if failure:
        raise AssertionError(f"{failure} ({module} on {design.name}, parameters {dict(parameters or {})!r}, "
                             f"seed {seed}); end of {log}:\n{_end(log)}")
    if not waves:
        shutil.rmtree(work)
