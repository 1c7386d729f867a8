"""Table of a node's memories, with names, numbers and sizes, which gateware and driver share."""

import dataclasses
import enum

from hdl.group import GROUP

__all__ = ["BASE_ALIGNMENT", "COUNT_WORDS", "MAX_SPACES", "REGION_BASES", "SCALE_WORDS", "TRACE_WORDS", "MemoryMap",
           "MemorySpace", "Space", "memory_map"]

#: Alignment of a command's base addresses, in elements, in every memory.
BASE_ALIGNMENT = GROUP

#: Command field that holds the base address of each region.
REGION_BASES = {"gradients": "gradient_base", "weights": "weight_base", "state": "state_base",
                "activations": "weight_base"}

#: Number of words in the scale table of a node with quorum updates.
SCALE_WORDS = 512

#: Number of words in the count table of a server with broadcast formats: 4 for each of 64 entries.
COUNT_WORDS = 256

#: Number of words in the trace memory of a node with programs.
TRACE_WORDS = 512

#: Maximum number of memory spaces selectable by host requests.
MAX_SPACES = 16


class Space(enum.IntEnum):
    """Numbers of memory spaces that every node has; state plane ``p`` is ``STATE + p``.

    The numbers of the spaces after the state planes depend on the node: see :class:`MemoryMap`.
    """

    GRADIENT = 0
    WEIGHT = 1
    STATE = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySpace:
    """Description of one memory of a node.

    Parameters
    ----------
    name : str
        Name of the space and of the corresponding submodule in the node.
    number : int
        Number of the space in host requests.
    words : int
        Capacity in elements.
    title : str
        Name in messages.
    region : str
        Region of the space. A buffer has the same address in every memory of its region, because a command has only
        one base address per region, in the field given by :data:`REGION_BASES`.
    """

    name: str
    number: int
    words: int
    title: str
    region: str


class MemoryMap:
    """Table of the memory spaces of one node, ordered by number.

    Parameters
    ----------
    spaces : iterable of (str, int, str, str)
        Name, capacity in elements, title and region of each space; spaces with no elements are omitted.
    """

    def __init__(self, spaces):
        present = [entry for entry in spaces if entry[1]]
        self._spaces = tuple(MemorySpace(name=name, number=number, words=words, title=title, region=region)
                             for number, (name, words, title, region) in enumerate(present))
        self._by_name = {space.name: space for space in self._spaces}
        if len(self._by_name) != len(self._spaces):
            raise ValueError(f"Memory spaces must have different names, not {', '.join(self.names)}")
        if len(self._spaces) > MAX_SPACES:
            raise ValueError(f"Memory spaces must be at most {MAX_SPACES}, not {len(self._spaces)}")

    def __iter__(self):
        return iter(self._spaces)

    def __len__(self):
        return len(self._spaces)

    def __contains__(self, name):
        return name in self._by_name

    def __getitem__(self, name):
        """Return the space with the given name; a ``KeyError`` lists the valid names."""
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"Memory must be one of {', '.join(self.names)}, not {name!r}") from None

    @property
    def names(self):
        """Names of all spaces, in order of their numbers."""
        return tuple(space.name for space in self._spaces)

    @property
    def words(self):
        """Capacities of all spaces, in order of their numbers."""
        return tuple(space.words for space in self._spaces)

    def region(self, name):
        """Return the spaces of a region, in order; a ``KeyError`` lists the valid regions."""
        spaces = tuple(space for space in self._spaces if space.region == name)
        if not spaces:
            regions = dict.fromkeys(space.region for space in self._spaces)
            raise KeyError(f"Region must be one of {', '.join(regions)}, not {name!r}")
        return spaces


def memory_map(config):
    """Return the :class:`MemoryMap` of a node with this configuration.

    Every node has gradients and weights. State planes, master weights and residuals exist if the optimizer or a codec
    needs them. A weight codec may need a codebook, a compute engine has activations, quorum updates have scales, a
    server with formats has counts, and programs have a trace.
    """
    planes = [(f"state_{plane}", config.memories.state, f"state plane {plane}", "state")
              for plane in range(config.memories.planes)]
    return MemoryMap([
        ("gradients", config.memories.gradient, "gradient memory", "gradients"),
        ("weights", config.memories.weight, "weight memory", "weights"),
        *planes,
        ("masters", config.memories.state if config.weights.has_master else 0, "master memory", "state"),
        ("codebook", config.codebook_words, "codebook memory", "codebook"),
        ("residuals", config.memories.gradient if config.has_residual else 0, "residual memory", "gradients"),
        ("activations", config.compute.activations if config.compute else 0, "activation memory", "activations"),
        ("scales", SCALE_WORDS if config.has_quorum else 0, "table of scales", "scales"),
        ("counts", COUNT_WORDS if config.serves_formats else 0, "table of counts", "counts"),
        ("trace", TRACE_WORDS if config.queues > 1 else 0, "trace", "trace"),
    ])
