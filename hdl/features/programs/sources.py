"""Program state as an input of engines."""

import dataclasses

from hdl.control.program_layouts import program_status_layout
from hdl.control.source import Source

__all__ = ["ProgramState"]


@dataclasses.dataclass(frozen=True)
class ProgramState(Source):
    """Field of the program state (:func:`~hdl.control.program_layouts.program_status_layout`), by name."""

    name: str

    def check(self, config, what):
        members = program_status_layout().members if config.has("programs") else ()
        names = [name for name in members if name != "reserved"]
        if self.name not in names:
            raise ValueError(f"{what} must be one of the states of programs {', '.join(names)}, not {self.name!r}"
                             if names else f"{what} needs a node with programs")

    def signal(self, units, engine):
        return units.queue.program_status[self.name]
