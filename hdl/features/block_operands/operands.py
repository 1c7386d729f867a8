# amaranth: UnusedElaboratable=no
"""Formats of operands in blocks."""

import dataclasses

from hdl.features.block_operands.block_array import BlockArray
from hdl.features.compute.operands import Operands
from hdl.features.mx.format import BlockCodec

__all__ = ["BlockOperands"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockOperands(Operands):
    """Operands in blocks along k, for a :class:`~hdl.features.block_operands.block_array.BlockArray`.

    Parameters
    ----------
    codec : BlockCodec
        A format supported by :func:`~hdl.features.block_operands.block_form.form_of`.
    """

    codec: BlockCodec

    @property
    def terms(self):
        """Number of terms added to a sum in one step."""
        return self.codec.block

    def make_array(self, name, *, rows, columns, dsps):
        return BlockArray(rows=rows, columns=columns, codec=self.codec)
