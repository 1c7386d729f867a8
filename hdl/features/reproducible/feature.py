"""Reproducible sums: integers with exponents common to all nodes, added in any order with the same result."""

from hdl.compression.codec import FixedCodec
from hdl.compression.registry import CODECS
from hdl.config.coupling import Coupling
from hdl.config.ring import Peer
from hdl.feature import Feature
from hdl.registry import codes

__all__ = ["FEATURE", "ReproducibleFeature"]

_WIDTHS = {"sum32": 32, "sum16": 16}


class ReproducibleFeature(Feature):
    """Feature that adds the formats sum32 and sum16 of gradients, and the parts of the datapath that sum integers."""

    couplings = (
        Coupling(sections=("gradients", "role"),
                 clash=lambda gradients, role: gradients in _WIDTHS
                 and (not isinstance(role, Peer) or role.interleaved),
                 rule=f"gradients {' and '.join(_WIDTHS)} need role Peer without interleaved",
                 reason="exponents of a segment are sent ahead of its integers, in the default order of segments",
                 advice="leave gradients or the role out"),
        Coupling(sections=("gradients", "lanes"), clash=lambda gradients, lanes: gradients == "sum16" and lanes < 2,
                 rule="gradients sum16 needs lanes of 2 or more", reason="a word holds two elements",
                 advice="raise lanes or leave gradients out"),
        Coupling(sections=("gradients", "weights"),
                 clash=lambda gradients, weights: gradients in _WIDTHS
                 and not isinstance(CODECS[weights.codec], FixedCodec),
                 rule=f"gradients {' and '.join(_WIDTHS)} need weights.codec of a fixed number of words",
                 reason="packets with weights begin with exponents of another segment",
                 advice="leave gradients or weights.codec out"),
    )

    def codecs(self):
        """Ring codecs, keyed by format name."""
        from hdl.features.reproducible.codec import IntegerCodec

        return {name: IntegerCodec(code=codes(name).ring, width=width) for name, width in _WIDTHS.items()}

    def parts(self, config):
        """Parts of the datapath that agree on exponents and sum integers; the microbatches feature, if present,
        provides its own parts instead."""
        if not config.adds_integers or config.has("microbatches"):
            return ()
        from hdl.features.reproducible import exponents_part, integer_sum

        return exponents_part.describe(config), integer_sum.describe(config)

    def collective(self, config):
        """Return the extension of the collective engine that sets the width of addends."""
        if not config.adds_integers:
            return None
        from hdl.features.reproducible.collective import ReproducibleExtension

        return ReproducibleExtension(config)


FEATURE = ReproducibleFeature()
