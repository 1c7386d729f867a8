"""Command programs, in two or more queues; see docs/program.md."""

import dataclasses

from amaranth.lib.wiring import Out

from hdl.feature import Feature
from hdl.section import Flag, Integer, OneOf, Section, option

__all__ = ["FEATURE", "Programs", "ProgramsFeature"]

#: Maximum number of commands in a program. It is limited because command counts are compared modulo 2^16.
_MAX_COMMANDS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs(Section):
    """Two command queues, one for computation and one for communication, with a program for each.

    With a replay link and without ``move_queue``, commands can also wait for commands of other nodes.

    Parameters
    ----------
    depth : int
        Maximum number of commands in each program, 1 to 1,024.
    banks : int
        Number of program banks: 1, or 2 for a node that receives the programs of a later set while a set runs:
        docs/program.md.
    versions : bool
        Whether updates are counted for each region of weights; a command that would compute with the wrong version is
        then rejected.
    move_queue : bool
        Whether there is a third queue, which moves activations to a far memory and back.
    """

    depth: int = option(64, Integer(1, _MAX_COMMANDS))
    banks: int = option(1, OneOf(1, 2))
    versions: bool = option(False, Flag())
    move_queue: bool = option(False, Flag())

    def make_memory(self, queues):
        """Create the program memory for ``queues`` queues."""
        from hdl.features.programs.program_memory import ProgramMemory

        return ProgramMemory(queues=queues, depth=self.depth, banks=self.banks)

    def make_versions(self):
        """Create the update counters of regions."""
        from hdl.features.programs.region_versions import RegionVersions

        return RegionVersions()

    def queue_members(self):
        """Members of a command queue for program banks."""
        from hdl.features.programs.program_banks import banks_members

        return banks_members() if self.banks > 1 else {}

    def port_members(self):
        """Additional members of the host port in a node with more than one program bank."""
        from hdl.features.programs.program_banks import BanksSignature

        return {"banks": Out(BanksSignature())} if self.banks > 1 else {}

    def connect_banks(self, m, queue, memory):
        """Create and connect the unit that selects the program bank, if there are two."""
        from hdl.features.programs.program_banks import connect_banks

        if self.banks > 1:
            connect_banks(m, queue, memory)

    def request_states(self, *signals):
        """Add the states for program requests to a host port."""
        from hdl.features.programs.program_requests import program_states

        program_states(*signals)


class ProgramsFeature(Feature):
    """Feature with commands that can wait for another queue, and settings that are latched for a pass."""

    def lacks(self, config):
        return () if config.has_banks else ("PROGRAM_BANK", "PROGRAM_SET")

    def engines(self, config):
        from hdl.features.programs import latched_settings

        return (latched_settings.describe(),)

    def around(self, config):
        from hdl.features.programs.node import ProgramsNode

        return ProgramsNode(config)


FEATURE = ProgramsFeature()
