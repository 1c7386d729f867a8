"""Joint evaluation of all nodes of a thread.

The code for one cycle of a node takes up several hundred kilobytes and runs from start to end. If nodes were
evaluated one after another, each would load all of this code; evaluated function by function, they share it.
"""

import itertools
import re
from pathlib import Path

__all__ = ["batch"]

#: Pattern of the function that evaluates a clock edge: one list of calls and statements after one trigger.
_LIST = re.compile(
    r"void (?P<root>V\w+___024root)___eval_nba\((?P=root)\* vlSelf\) \{\n"
    r"(?:    (?:VL_DEBUG_IF|V\w+__Syms\* const|auto& vlSelfRef|// Body).*\n)*"
    r"    if \(\(1ULL & vlSelfRef\.__VnbaTriggered\[0U\]\)\) \{\n"
    r"(?P<body>(?:        .*\n)+)"
    r"    \}\n\}\n")

_CALL = re.compile(r"        (\w+___nba_\w+)\(vlSelf\);\n")

#: A function that can stop the simulation, which it finds through the thread's context.
_STOPS = re.compile(
    r"^void (\w+)\(V\w+\* vlSelf\) \{\n(?:(?!^\}).*\n)*?.*\bVL_(?:STOP|FINISH|FATAL|WRITEF)", re.MULTILINE)

#: Replacement for ``eval_nba``: it records the node, and `ring_batch` evaluates all recorded nodes.
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

#: Function for the statements between two calls, so that they can be called for one node after another.
_STATEMENTS = """static void {name}({root}* vlSelf) {{
    auto* const __restrict vlSymsp VL_ATTR_UNUSED = vlSelf->vlSymsp;
    auto& vlSelfRef = std::ref(*vlSelf).get();
{statements}}}

"""


def batch(folder: Path, model: str) -> bool:
    """Change the Verilated class V``model`` in ``folder`` so that a clock edge only records the node, and
    ``void ring_batch()`` evaluates all nodes that the thread has recorded.

    Returns
    -------
    bool
        False, without any change, if the generated code is not a single flat list, as this requires.
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
            stopping.add(names[0])  # may stop the simulation
        calls += "".join(f"    ring_evaluate_all<{name}, {str(name in stopping).lower()}>();\n" for name in names)
    path.write_text(match.string[:match.start()] + statements + _BATCH.format(root=root, calls=calls)
                    + match.string[match.end():])
    return True
