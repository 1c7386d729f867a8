"""Nodes that sum several gradients each, so that sums of integers do not depend on the number of nodes."""

import dataclasses

from hdl.compression.registry import GRADIENT_CODECS
from hdl.config.coupling import Coupling
from hdl.feature import Feature
from hdl.section import Section

__all__ = ["FEATURE", "Microbatches", "MicrobatchesFeature"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Microbatches(Section):
    """Gradients of several microbatches on each node, summed as integers, see docs/reproducible.md."""


class MicrobatchesFeature(Feature):
    """Feature that lets each node contribute several gradients to a sum of integers."""

    requires = ("reproducible",)
    couplings = (
        Coupling(sections=("Microbatches", "gradients"),
                 clash=lambda section, gradients: section is not None and not GRADIENT_CODECS[gradients].agreed,
                 rule="Microbatches needs gradients sum32 or sum16",
                 reason="only integers have the same sum in every order",
                 advice="leave Microbatches out or change gradients"),
        Coupling(sections=("Microbatches", "Tenants"),
                 clash=lambda section, tenants: section is not None and tenants is not None,
                 rule="Microbatches goes without Tenants", reason="a window check covers one gradient per command",
                 advice="leave one of them out"),
    )

    def parts(self, config):
        """Parts of the datapath that agree on exponents and sum integers of several addends."""
        from hdl.features.microbatches import parts

        return parts.describe_exponents(config), parts.describe_sums(config)

    def collective(self, config):
        """Extension of the collective engine that takes the numbers of addends from registers."""
        from hdl.features.microbatches.collective import MicrobatchesExtension

        return MicrobatchesExtension(config)


FEATURE = MicrobatchesFeature()
