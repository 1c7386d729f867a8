"""No host module uses BLAS for floating-point numbers, or exponential functions of numpy or the system."""

import ast
from pathlib import Path

HOST = Path(__file__).parents[2] / "host"
#: Functions by module with results that depend on the processor.
FORBIDDEN = {
    "np": {"dot", "vdot", "inner", "outer", "matmul", "tensordot", "einsum", "linalg", "convolve", "exp", "exp2",
           "expm1", "log", "log2", "log10", "log1p", "power", "tanh", "sin", "cos", "logaddexp"},
    "math": {"exp", "log", "log2", "log10", "log1p", "pow", "tanh", "sin", "cos"},
}
#: Uses that are harmless and therefore allowed: figures in reports, pictures, and products of integers.
ALLOWED = {
    ("features/quantization/network.py", "codes @ weights.codes.T"): "integers",
    ("features/quantization/experiment.py", "np.log10"): "decibels of a report",
    ("labs/formats/measures.py", "np.log10"): "decibels of a table",
    ("labs/streaming/lab.py", "np.convolve"): "a picture",
}


def found(path):
    """Yield the forbidden expressions in a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield ast.unparse(node)
        if (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                and node.attr in FORBIDDEN.get(node.value.id, ())):
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "dot":
            yield ast.unparse(node.func)


def test_no_blas():
    places = {(str(path.relative_to(HOST)), text) for path in HOST.rglob("*.py") for text in found(path)
              if not path.is_relative_to(HOST / "reports") and not path.is_relative_to(HOST / "labs" / "sweep")}
    assert places == set(ALLOWED)


def test_expressions_are_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("a @ b\nnp.exp(a)\na.dot(b)\nmath.log(a)\nmath.sqrt(a)\nnp.sqrt(a)\n")
    assert sorted(found(path)) == ["a @ b", "a.dot", "math.log", "np.exp"]
