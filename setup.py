"""Build wheels that contain all modules inside the package gradring, so that none collides with another project's.

A clone has hdl, sim, host and boards at its root, and is used as an editable installation. Such general names must
not be top-level packages in site-packages: see docs/decisions/packaging.md.
"""

import ast
import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

PACKAGES = ("hdl", "sim", "host", "boards")

#: Folder with the files that `gradring examples` copies unchanged.
EXAMPLES = "examples"

#: Pattern of a string that names a module or an object in a module.
_NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+(?::\w+)?")
_BEGINNING = re.compile(rf"(?:{'|'.join(PACKAGES)})\.")


def within(text: str) -> str:
    """Return a module's source with ``gradring.`` inserted before the names of modules in imports and strings.

    Raises
    ------
    ValueError
        The source contains ``import hdl…``, which would also require changes wherever the name is used, or a module
        name in a string that is not a plain literal.
    """
    lines = text.encode().splitlines(keepends=True)  # columns of the syntax tree count bytes
    places = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in PACKAGES:
            places.append((node.lineno, node.col_offset, b"from ", b"from gradring."))
        elif isinstance(node, ast.Import) and any(alias.name.split(".")[0] in PACKAGES for alias in node.names):
            raise ValueError(f"Line {node.lineno}: modules of {', '.join(PACKAGES)} must be imported by 'from'")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            quote = lines[node.lineno - 1][node.col_offset:node.col_offset + 1]
            old = quote + node.value.encode()
            places.append((node.lineno, node.col_offset, old, quote + b"gradring." + node.value.encode()))
        elif (isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant)
              and _BEGINNING.match(node.values[0].value)):
            raise ValueError(f"Line {node.lineno}: the name of a module must be a plain string")
    for number, column, old, new in sorted(places, reverse=True):
        line = lines[number - 1]
        if not line.startswith(old, column):
            raise ValueError(f"Line {number}: the name of a module must be a plain string")
        lines[number - 1] = line[:column] + new + line[column + len(old):]
    return b"".join(lines).decode()


class Build(build_py):
    """Build a wheel's files; an editable installation uses the clone's files."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        root = Path(self.build_lib)
        for package in PACKAGES:
            target = root / "gradring" / package
            shutil.rmtree(target, ignore_errors=True)  # files left by an earlier build
            (root / package).rename(target)
        examples = root / "gradring" / EXAMPLES
        shutil.rmtree(examples, ignore_errors=True)
        for path in (root / "gradring").rglob("*.py"):
            text = path.read_text()
            if (changed := within(text)) != text:
                path.write_text(changed)
        shutil.copytree(EXAMPLES, examples, ignore=shutil.ignore_patterns("__pycache__"))


class Metadata(egg_info):
    """Metadata that name a wheel's only top-level package."""

    def run(self) -> None:
        super().run()
        Path(self.egg_info, "top_level.txt").write_text("gradring\n")


def readme() -> str:
    """README.md with absolute links to the files of the version's tag, for pages outside of a clone."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    home, tag = project["urls"]["Homepage"], f"v{project['version']}"
    return re.sub(r"(!?\[[^\]]*\]\()(?!https?:|#)",
                  lambda match: f"{match[1]}{home}/{'raw' if match[1][0] == '!' else 'blob'}/{tag}/",
                  Path("README.md").read_text())


if __name__ == "__main__":
    setup(cmdclass={"build_py": Build, "egg_info": Metadata}, long_description=readme(),
          long_description_content_type="text/markdown")
