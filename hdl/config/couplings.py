"""Couplings of a node's sections: values of one that another one does not go with, each with its reason.

This is the only list of them: configurations are checked with it, and error messages, docs/node.md and
``gradring info`` print it. A coupling of more than two sections refuses only some values of the third.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from hdl.compression.registry import GRADIENT_CODECS, RAW, ZERO_VALUE
from hdl.compute.operands import MOST_BLOCK_UNITS, operands_of
from hdl.config.ring import Peer
from hdl.ring.header import LONGEST_SEGMENT, MOST_SEGMENTS
from hdl.ring.topology import SMALL_RING

__all__ = ["COUPLINGS", "Coupling", "check_couplings"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coupling:
    """Values of sections that do not go together.

    Parameters
    ----------
    sections : tuple of str
        Names of the sections: fields of a configuration, and types of features.
    clash : callable
        Takes the values of these sections, and returns whether they are refused. A section that is not there is None.
    rule : str
        What is asked of the sections.
    reason : str
        Why.
    advice : str
        What to do.
    """

    sections: tuple[str, ...]
    clash: Callable[..., bool]
    rule: str
    reason: str
    advice: str

    @property
    def message(self) -> str:
        """Text of the error."""
        return f"{self.rule}, since {self.reason}: {self.advice}"


def _units(compute, lanes):
    return operands_of(compute.operands).terms > 1 and compute.rows * lanes > MOST_BLOCK_UNITS


def _in_block(segment):
    """Elements of the longest vector that a block of a ring of two nodes can have a half of."""
    return 2 * MOST_SEGMENTS * segment


def _too_long(memories, segment):
    return max(memories.gradient, memories.weight) > _in_block(segment)


def _has_quorum(stub):
    return stub is not None and stub.quorum


def _two_queues(programs):
    return programs is not None and not programs.move_queue


COUPLINGS = (
    Coupling(sections=("compute", "optimizer"),
             clash=lambda compute, optimizer: compute is not None and _units(compute, optimizer.lanes),
             rule=f"compute.rows times optimizer.lanes must be at most {MOST_BLOCK_UNITS} with operands in blocks",
             reason="lanes must be as many as those of the optimizer, and one adder serves all units that multiply "
                    "blocks",
             advice="lower compute.rows or optimizer.lanes, or take operands fp32 or bf16"),
    Coupling(sections=("optimizer", "lanes"), clash=lambda optimizer, lanes: optimizer.lanes > lanes,
             rule="optimizer.lanes must be at most lanes",
             reason="a step of the optimizer takes elements of one memory row",
             advice="lower optimizer.lanes or raise lanes"),
    Coupling(sections=("compute", "lanes"), clash=lambda compute, lanes: compute is not None and lanes < 2,
             rule="compute needs lanes of 2, 4 or 8", reason="its panels of operands are read by rows of several",
             advice="raise lanes or leave compute out"),
    Coupling(sections=("compute", "lanes"), clash=lambda compute, lanes: compute is not None and compute.rows > lanes,
             rule="compute.rows must be at most lanes", reason="a panel is as wide as a memory row",
             advice="lower compute.rows or raise lanes"),
    Coupling(sections=("compute", "lanes"),
             clash=lambda compute, lanes: compute is not None and _units(compute, lanes),
             rule=f"compute.rows times lanes must be at most {MOST_BLOCK_UNITS} with operands in blocks",
             reason="one adder serves all units that multiply blocks",
             advice="lower compute.rows or lanes, or take operands fp32 or bf16"),
    Coupling(sections=("role", "lanes"), clash=lambda role, lanes: role.broadcast_formats and lanes < 2,
             rule="role.broadcast_formats needs lanes of 2, 4 or 8",
             reason="encoders of several formats take rows of several elements",
             advice="raise lanes or leave broadcast_formats out"),
    Coupling(sections=("role", "weights"),
             clash=lambda role, weights: role.root_reduce and weights.codec != RAW,
             rule="role RootReduce needs weights.codec raw", reason="the root passes weights on as it has them",
             advice="leave weights.codec or the role out"),
    Coupling(sections=("role", "weights"),
             clash=lambda role, weights: role.streams and weights.has_master,
             rule="role Worker needs weights.codec raw and no weights.master",
             reason="the server keeps master weights, and broadcasts weights raw or in formats of its own",
             advice="leave weights or the role out"),
    Coupling(sections=("role", "gradients"),
             clash=lambda role, gradients: not isinstance(role, Peer) and gradients != ZERO_VALUE,
             rule=f"roles RootReduce and Worker need gradients {ZERO_VALUE}",
             reason="sums along a chain of nodes are added as they are coded",
             advice="leave gradients or the role out"),
    Coupling(sections=("role", "link"), clash=lambda role, link: link.slots and not isinstance(role, Peer),
             rule="links Slots and JobSlots need role Peer",
             reason="a superframe has a slot for every node, as peers use them",
             advice="leave the role out, or take link Credits or Replay"),
    Coupling(sections=("role", "link"), clash=lambda role, link: role.interleaved and link.ingress < 3,
             rule="role.interleaved needs link.ingress of 3 or more",
             reason="an ingress holds a packet of each of two segments and one on its way",
             advice="raise link.ingress or leave interleaved out"),
    Coupling(sections=("role", "stub"), clash=lambda role, stub: role.root_reduce and _has_quorum(stub),
             rule="role RootReduce goes without stub.quorum", reason="a quorum's blocks have an owner each",
             advice="leave the role or quorum out"),
    Coupling(sections=("stub", "programs"),
             clash=lambda stub, programs: _has_quorum(stub) and not _two_queues(programs),
             rule="stub.quorum needs programs without move_queue", reason="control words are of two queues",
             advice="add programs=Programs(), or leave move_queue or quorum out"),
    Coupling(sections=("stub", "link"), clash=lambda stub, link: _has_quorum(stub) and not link.replay,
             rule="stub.quorum needs link Replay or Slots", reason="nodes find the quorum by control words",
             advice="add link=Replay() or leave quorum out"),
    Coupling(sections=("stub", "link"),
             clash=lambda stub, link: _has_quorum(stub) and (link.jobs > 1 or link.messages),
             rule="stub.quorum goes without link JobSlots and without link.messages",
             reason="words of a quorum would take the cycles of jobs or messages",
             advice="leave quorum or messages out, or take link Slots"),
    Coupling(sections=("stub", "gradients"),
             clash=lambda stub, gradients: _has_quorum(stub) and not GRADIENT_CODECS[gradients].exact,
             rule=f"stub.quorum needs gradients {RAW} or {ZERO_VALUE}",
             reason="a residual would be added to the zeros of an absent node",
             advice="leave gradients or quorum out"),
    Coupling(sections=("stub", "topology"),
             clash=lambda stub, topology: _has_quorum(stub) and topology.max_nodes > SMALL_RING,
             rule=f"stub.quorum needs topology.max_nodes of {SMALL_RING} or fewer",
             reason="ranks in control words have 4 bits", advice="lower max_nodes or leave quorum out"),
    Coupling(sections=("link", "topology"), clash=lambda link, topology: link.slots and topology.ports > 1,
             rule="links Slots and JobSlots need topology SingleRing", reason="their TIME is of one ring",
             advice="leave topology out, or take link Credits or Replay"),
    Coupling(sections=("link", "topology"),
             clash=lambda link, topology: link.slots and topology.max_nodes > SMALL_RING,
             rule=f"links Slots and JobSlots need topology.max_nodes of {SMALL_RING} or fewer",
             reason="ranks in control words have 4 bits", advice="lower max_nodes, or take link Credits or Replay"),
    Coupling(sections=("link", "programs"), clash=lambda link, programs: link.slots and not _two_queues(programs),
             rule="links Slots and JobSlots need programs without move_queue",
             reason="their control words are of two queues",
             advice="add programs=Programs(), leave move_queue out, or take link Credits or Replay"),
    Coupling(sections=("link", "Tenants"), clash=lambda link, tenants: link.slots and tenants is not None,
             rule="links Slots and JobSlots go without Tenants", reason="slots are of all tenants",
             advice="leave Tenants out, or take link Credits or Replay"),
    Coupling(sections=("link", "Throttles"), clash=lambda link, throttles: link.slots and throttles is not None,
             rule="links Slots and JobSlots go without Throttles",
             reason="a packet in a slot has the rate of the wires",
             advice="leave Throttles out, or take link Credits or Replay"),
    Coupling(sections=("memories", "topology"),
             clash=lambda memories, topology: topology.max_nodes > 1 and _too_long(memories, LONGEST_SEGMENT),
             rule=f"memories.gradient and memories.weight must be at most {_in_block(LONGEST_SEGMENT)} in rings of "
                  "two or more",
             reason=f"a block has at most {MOST_SEGMENTS} segments",
             advice="lower them, or give topology max_nodes=1"),
    Coupling(sections=("memories", "topology", "segment"),
             clash=lambda memories, topology, segment: topology.max_nodes > 1 and _too_long(memories, segment),
             rule=f"memories.gradient and memories.weight must be at most {2 * MOST_SEGMENTS} times segment in rings "
                  "of two or more",
             reason=f"a block has at most {MOST_SEGMENTS} segments",
             advice="lower them, raise segment, or give topology max_nodes=1"),
    Coupling(sections=("link", "topology", "programs"),
             clash=lambda link, topology, programs: (
                 link.replay and topology.max_nodes > SMALL_RING and _two_queues(programs)),
             rule=f"link Replay and programs without move_queue need topology.max_nodes of {SMALL_RING} or fewer",
             reason="they have control words, where ranks have 4 bits",
             advice="lower max_nodes, leave programs out, or take link Credits"),
)


def check_couplings(sections: Mapping[str, Any]) -> None:
    """Raise ValueError at the first coupling that refuses these sections, by their names; one that is about a section
    which the configuration cannot have is left out."""
    for coupling in COUPLINGS:
        if sections.keys() >= set(coupling.sections) and coupling.clash(
                *(sections[name] for name in coupling.sections)):
            raise ValueError(coupling.message)
