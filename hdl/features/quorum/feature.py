"""Feature of quorum updates, which do not wait for the gradients of all nodes; see docs/ring/quorum.md."""

from hdl.compression.registry import GRADIENT_CODECS, RAW, ZERO_VALUE
from hdl.config.coupling import Coupling
from hdl.feature import Feature
from hdl.features.replay.feature import two_queues
from hdl.ring.topology import SMALL_RING

__all__ = ["FEATURE", "QuorumFeature"]

def _has_quorum(stub):
    return stub is not None and stub.quorum


class QuorumFeature(Feature):
    """Feature that adds the operation APPLY_LATE and gates that delay COMPUTE and FUSED_UPDATE."""

    requires = ("replay", "programs", "compute_stub")
    couplings = (
        Coupling(sections=("role", "stub"), clash=lambda role, stub: role.root_reduce and _has_quorum(stub),
                 rule="role RootReduce goes without stub.quorum", reason="each block of a quorum has its owner",
                 advice="leave the role or quorum out"),
        Coupling(sections=("stub", "programs"),
                 clash=lambda stub, programs: _has_quorum(stub) and not two_queues(programs),
                 rule="stub.quorum needs programs without move_queue", reason="control words support only two queues",
                 advice="add programs=Programs(), or leave move_queue or quorum out"),
        Coupling(sections=("stub", "link"), clash=lambda stub, link: _has_quorum(stub) and not link.replay,
                 rule="stub.quorum needs link Replay or Slots", reason="nodes agree on the quorum by control words",
                 advice="add link=Replay() or leave quorum out"),
        Coupling(sections=("stub", "link"),
                 clash=lambda stub, link: _has_quorum(stub) and (link.jobs > 1 or link.messages),
                 rule="stub.quorum goes without link JobSlots and without link.messages",
                 reason="control words of a quorum would take cycles from jobs or messages",
                 advice="leave quorum or messages out, or take link Slots"),
        Coupling(sections=("stub", "gradients"),
                 clash=lambda stub, gradients: _has_quorum(stub) and not GRADIENT_CODECS[gradients].exact,
                 rule=f"stub.quorum needs gradients {RAW} or {ZERO_VALUE}",
                 reason="residuals would be added to the zeros of absent nodes",
                 advice="leave gradients or quorum out"),
        Coupling(sections=("stub", "topology"),
                 clash=lambda stub, topology: _has_quorum(stub) and topology.max_nodes > SMALL_RING,
                 rule=f"stub.quorum needs topology.max_nodes of {SMALL_RING} or fewer",
                 reason="ranks in control words have 4 bits", advice="lower max_nodes or leave quorum out"),
    )

    def engines(self, config):
        from hdl.features.quorum import description
        return (description.describe(config),)

    def control_units(self, config):
        from hdl.features.quorum.collective import quorum_relay

        return (quorum_relay(),)

    def collective(self, config):
        from hdl.features.quorum.collective import QuorumExtension

        return QuorumExtension(config)


FEATURE = QuorumFeature()
