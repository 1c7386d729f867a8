"""Options of the command line by the fields of a run's description."""

from host.options import Section
from host.run import sections

__all__ = ["LEADS", "SCHEDULES", "SECTIONS", "flag", "of_schedule"]

#: Sections of a run other than its schedule, by name.
SECTIONS: dict[str, type[Section]] = {
    "workload": sections.Workload, "model": sections.Model, "ring": sections.Ring, "backend": sections.Backend,
    "optimizer": sections.Optimizer, "formats": sections.Formats, "compute": sections.Compute,
    "faults": sections.Faults, "output": sections.Output}
#: Types of schedules by their kinds.
SCHEDULES: dict[str, type[Section]] = {kind.kind: kind for kind in (
    sections.Update, sections.Program, sections.Quorum, sections.Streaming, sections.SideBySide)}


def flag(path: str) -> str:
    """Option of a field on the command line: ``--momentum`` of ``optimizer.momentum``."""
    section, _, name = path.partition(".")
    kinds = tuple(SCHEDULES.values()) if section == "schedule" else (SECTIONS[section],)
    flags = next(kind.options()[name].flags for kind in kinds if name in kind.options())
    return flags[0].partition("/")[0]


#: Option by which a schedule is asked for.
LEADS = {sections.Quorum.kind: "--straggler", sections.Streaming.kind: "--schedule streaming",
          sections.SideBySide.kind: "--jobs", sections.Program.kind: "--overlap",
          sections.Update.kind: "--schedule update"}


def of_schedule(path: str, chosen: str) -> str:
    """Text of the error for a field of another schedule than the ``chosen`` one."""
    return f"Option {flag(path)} is for a run without {LEADS[chosen]}: leave it out"
