"""Weight codecs with a codebook."""

import numpy.typing as npt

from host.feature import Bits, Feature

__all__ = ["FEATURE", "CodebookFeature"]


class CodebookFeature(Feature):
    """Codebooks for the weights of nodes."""

    def codebook_words(self, codec: str, centroids: Bits) -> Bits:
        from host.features.codebook.codebooks import codebook_words

        return codebook_words(codec, centroids)

    def centroids(self, codec: str, weights: npt.ArrayLike) -> Bits:
        from host.features.codebook.codebooks import codebook

        return codebook(codec, weights)


FEATURE = CodebookFeature()
