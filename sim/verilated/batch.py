"""Evaluate all nodes of a simulation thread together.

A node's code for one cycle is several hundred kilobytes long and runs from start to end. If nodes were evaluated one
after another, the code would be loaded for each; evaluating them function by function loads it once.
"""

import itertools
import re
from pathlib import Path

__all__ = ["batch"]

#: Pattern of the function that evaluates a clock edge: a list of calls and statements after a single trigger.
_LIST = re.compile(
    r"void (?P<root>V\w+___024root)___eval_nba\((?P=root)\* vlSelf\) \{\n"
    r"(?:    (?:VL_DEBUG_IF|V\w+__Syms\* const|auto& vlSelfRef|// Body).*\n)*"
    r"    if \(\(1ULL & vlSelfRef\.__VnbaTriggered\[0U\]\)\) \{\n"
    r"(?P<body>(?:        .*\n)+)"
    r"    \}\n\}\n")

_CALL = re.compile(r"        (\w+___nba_\w+)\(vlSelf\);\n")

#: Pattern of a function that may stop the simulation, which requires the context of the calling thread.
_STOPS = re.compile(
    r"^void (\w+)\(V\w+\* vlSelf\) \{\n(?:(?!^\}).*\n)*?.*\bVL_(?:STOP|FINISH|FATAL|WRITEF)", re.MULTILINE)

#: Replacement for ``eval_nba`` that records the node; `ring_batch` evaluates all recorded nodes.
_BATCH = """\
#include <vector>

static thread_local std::vector<{root}*> ring_noted;

void {root}___eval_nba({root}* vlSelf) {{
    if ((1ULL & vlSelf->__VnbaTriggered[0U])) ring_noted.push_back(vlSelf);
}}

template <void evaluate({root}*), bool stops> static inline void ring_evaluate_all() {{
    for ({root}* const node : ring_noted) {{
        if (stops) Verilated::threadContextp(node->vlSymsp->_vm_contextp__);
        evaluate(node);
    }}
}}

void ring_batch() {{
{calls}    ring_noted.clear();
}}
"""

#: Template of a function that contains the statements between two calls, so that they can be run for each node.
_STATEMENTS = """static void {name}({root}* vlSelf) {{
    auto* const __restrict vlSymsp VL_ATTR_UNUSED = vlSelf->vlSymsp;
    auto& vlSelfRef = std::ref(*vlSelf).get();
{statements}}}

"""


def batch(folder: Path, model: str) -> bool:
    """Patch class V``model`` in ``folder``, so that all nodes of a thread are evaluated together.

    A clock edge then only records the node; ``void ring_batch()`` evaluates all nodes that the thread has recorded.

    Returns
    -------
    bool
        False, with nothing changed, if the generated code is not a single flat list as required.
    """
    texts = {path: path.read_text() for path in sorted(folder.glob(f"V{model}___024root*.cpp"))}
    matches = [(path, match) for path, text in texts.items() for match in _LIST.finditer(text)]
    if len(matches) != 1:
        return False
    (path, match), = matches
    root = match["root"]
    stopping = {name for text in texts.values() for name in _STOPS.findall(text)}
    statements = calls = ""
    for number, (is_call, lines) in enumerate(itertools.groupby(
            match["body"].splitlines(keepends=True), lambda line: _CALL.fullmatch(line) is not None)):
        text = "".join(lines)
        names = _CALL.findall(text)
        if not is_call:
            names = [f"{root}___batch_{number}"]
            statements += _STATEMENTS.format(name=names[0], root=root, statements=text)
            stopping.add(names[0])  # these statements may stop the simulation
        calls += "".join(f"    ring_evaluate_all<{name}, {str(name in stopping).lower()}>();\n" for name in names)
    path.write_text(match.string[:match.start()] + statements + _BATCH.format(root=root, calls=calls)
                    + match.string[match.end():])
    return True
