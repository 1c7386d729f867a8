"""Couplings between sections of a node's configuration: incompatible combinations of values, with reasons.

The core defines this list, and each feature adds its own. Couplings are used to check configurations, and shown in
error messages, in docs/node.md and by ``gradring info``. A coupling of three sections depends on the value of the
third.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hdl.compression.registry import RAW, ZERO_VALUE
from hdl.config.coupling import Coupling
from hdl.config.ring import Peer
from hdl.registry import FEATURES, feature
from hdl.ring.header import LONGEST_SEGMENT, MAX_SEGMENTS

__all__ = ["CORE", "all_couplings", "check_couplings"]


def _in_block(segment):
    """Maximum vector length: in a ring of two nodes, each half must fit into a block."""
    return 2 * MAX_SEGMENTS * segment


def _too_long(memories, segment):
    return max(memories.gradient, memories.weight) > _in_block(segment)


#: Couplings between the core's sections.
CORE = (
    Coupling(sections=("optimizer", "lanes"), clash=lambda optimizer, lanes: optimizer.lanes > lanes,
             rule="optimizer.lanes must be at most lanes",
             reason="a step of the optimizer takes elements of one memory row",
             advice="lower optimizer.lanes or raise lanes"),
    Coupling(sections=("role", "weights"),
             clash=lambda role, weights: role.root_reduce and weights.codec != RAW,
             rule="role RootReduce needs weights.codec raw", reason="the root sends its weights unencoded",
             advice="leave weights.codec or the role out"),
    Coupling(sections=("role", "gradients"),
             clash=lambda role, gradients: not isinstance(role, Peer) and gradients != ZERO_VALUE,
             rule=f"roles RootReduce and Worker need gradients {ZERO_VALUE}",
             reason="sums along a chain of nodes are added in this codec",
             advice="leave gradients or the role out"),
    Coupling(sections=("role", "link"), clash=lambda role, link: role.interleaved and link.ingress < 3,
             rule="role.interleaved needs link.ingress of 3 or more",
             reason="the ingress must hold one packet of each of two segments, and an arriving packet",
             advice="raise link.ingress or leave interleaved out"),
    Coupling(sections=("memories", "topology"),
             clash=lambda memories, topology: topology.max_nodes > 1 and _too_long(memories, LONGEST_SEGMENT),
             rule=f"memories.gradient and memories.weight must be at most {_in_block(LONGEST_SEGMENT)} in rings of "
                  "two or more",
             reason=f"a block has at most {MAX_SEGMENTS} segments",
             advice="lower them, or give topology max_nodes=1"),
    Coupling(sections=("memories", "topology", "segment"),
             clash=lambda memories, topology, segment: topology.max_nodes > 1 and _too_long(memories, segment),
             rule=f"memories.gradient and memories.weight must be at most {2 * MAX_SEGMENTS} times segment in rings "
                  "of two or more",
             reason=f"a block has at most {MAX_SEGMENTS} segments",
             advice="lower them, raise segment, or give topology max_nodes=1"),
)


def all_couplings(features: Iterable[str] = FEATURES) -> tuple[Coupling, ...]:
    """Return the couplings of the core and of ``features`` (by default, of all features). Smaller ones come first."""
    couplings = (*CORE, *(coupling for name in features for coupling in feature(name).couplings))
    return tuple(sorted(couplings, key=lambda coupling: len(coupling.sections)))


def check_couplings(sections: Mapping[str, Any], features: Iterable[str]) -> None:
    """Raise ValueError for the first coupling that rejects the values of ``sections``, keyed by section name.

    A coupling is skipped if the configuration has no section of a name that it refers to.
    """
    for coupling in all_couplings(features):
        if sections.keys() >= set(coupling.sections) and coupling.clash(
                *(sections[name] for name in coupling.sections)):
            raise ValueError(coupling.message)
