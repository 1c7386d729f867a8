# amaranth: UnusedElaboratable=no
"""Formats of operands in blocks."""

import dataclasses

from hdl.features.block_operands.block_array import BlockArray
from hdl.features.compute.operands import Operands
from hdl.features.mx.format import BlockCodec

__all__ = ["BlockOperands"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockOperands(Operands):
    """Format of blocks of operands along k, in a :class:`~hdl.features.block_operands.block_array.BlockArray`.

    Parameters
    ----------
    codec : BlockCodec
        A format with a form, see :func:`~hdl.features.block_operands.block_form.form_of`.
    """

    codec: BlockCodec

    @property
    def terms(self):
        """Number of terms of a sum that are added as one."""
        return self.codec.block

    def make_array(self, name, *, rows, columns, dsps):
        return BlockArray(rows=rows, columns=columns, codec=self.codec)
