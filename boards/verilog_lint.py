"""Lint exported Verilog files with Verilator; each waived warning is listed with a reason."""

import re
from pathlib import Path

from sim.verilated import toolchain

__all__ = ["WAIVED", "WAIVED_BELOW", "WAIVED_OF_PRIMITIVES", "lint", "primitives", "top_module"]

#: Warnings of ``verilator -Wall`` that are harmless anywhere in a file, each with a reason.
WAIVED = {
    "DECLFILENAME": "a file holds all modules of a unit, and is named as the unit is",
    "UNUSEDSIGNAL": "padding of TDATA, and fields that a unit ignores; each field of a payload is a wire of its own",
}

#: Additional warnings that are harmless below the top module, in modules written by Yosys.
WAIVED_BELOW = {
    "PROCASSINIT": "registers have an initial value and a reset",
    "WIDTHEXPAND": "operands of different width, extended as the language says",
    "WIDTHTRUNC": "`!` of a vector; results that are cut to a field on purpose",
    "VARHIDDEN": "a signal with the name of the instance that its module is",
    "CASEINCOMPLETE": "values assigned before a case hold in all others",
    "CASEOVERLAP": "cases in order of priority",
    "UNSIGNED": "comparisons with 0 that a parameter makes constant",
    "CMPCONST": "comparisons with a bound that a width cannot exceed",
    "UNOPTFLAT": "vectors whose bits depend on one another, without a loop",
}

#: Additional warnings that are harmless in modules that contain a primitive of the part.
WAIVED_OF_PRIMITIVES = {
    "MODMISSING": "the primitive is in the part's library",
    "UNDRIVEN": "outputs of the primitive, whose directions are not known",
}


def primitives(text: str) -> list[str]:
    """Names of the primitives in Yosys's Verilog, where only primitives have parameters."""
    return sorted(set(re.findall(r"^  (\w+) #\($", text, flags=re.MULTILINE)))


def top_module(label):
    return "gradring_" + re.sub(r"\W+", "_", label)


def lint(path: Path):
    """Lint a Verilog-2005 file with all Verilator warnings except :data:`WAIVED` and :data:`WAIVED_BELOW`.

    The waivers are written to a control file next to it, with the suffix ``.vlt``.

    Raises
    ------
    ToolError
        Verilator reports a warning or an error, which is quoted in the message.
    """
    text = path.read_text()
    lines = text.splitlines()
    below = 2 + lines.index("endmodule")
    rules = ["`verilator_config"]
    absent = WAIVED_OF_PRIMITIVES if primitives(text) else {}
    for waived, scope in ((WAIVED, ""), ({**WAIVED_BELOW, **absent}, f" -lines {below}-{len(lines)}")):
        for rule, reason in waived.items():
            rules += [f"// {reason}", f'lint_off -rule {rule} -file "*{path.name}"{scope}']
    control = path.with_suffix(".vlt")
    control.write_text("\n".join([*rules, ""]))
    command = [str(toolchain.verilator() / "bin" / "verilator"), "--lint-only", "-Wall", "--quiet",
               "--default-language", "1364-2005", "--top-module", top_module(path.stem), control.name, path.name]
    output = toolchain.run(command, cwd=path.parent, env=toolchain.environment())
    if output.strip():
        raise toolchain.ToolError(f"Verilator has something to say about {path.name}:\n{output}")
