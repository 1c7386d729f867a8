"""Golden state of a training run on the rows and columns of a grid."""

from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import VectorRing
from host.features.grid.grid import Plan
from host.training.reference import Places, Reference, golden_settings, is_packed
from sim.golden.features.grid import grid
from sim.golden.ring import Traffic, Update, block_indices

__all__ = ["GridReference"]

Bits = npt.NDArray[np.uint32]


class GridReference(Reference):
    """Golden model of a run on a two-dimensional plan, with the same options as :class:`Reference`."""

    def __init__(self, ring: VectorRing, plan: Plan, *options: Any):
        super().__init__(ring, *options)
        row, column = plan.settings[plan.order[0]].seats
        assert row is not None
        assert column is not None
        self._rows, self._columns = column.size, row.size

    @property
    def equivalent_nodes(self) -> float:
        """Size of a ring with the same mean density as the grid, where hop h sums h nodes or h rows."""
        rows, columns = self._rows, self._columns
        hops = rows + columns - 2
        return columns * (columns - 1 + rows * (rows - 1)) / hops if hops else 1

    def _update(self, gradients: Bits, settings: Settings | FixedSettings, places: Places, block_offset: int,
                residuals: Bits | None) -> Update:
        numbers, packed_state = golden_settings(settings), is_packed(settings)
        shape = (self._rows, self._columns, -1)
        update = grid.fused_update(
            gradients.reshape(shape), self.master, self.state, numbers, packed_state=packed_state,
            weight_codec=self._codec, gradient_codec=self._gradient_codec,
            residuals=None if residuals is None else residuals.reshape(shape), segment=self._ring.formats.segment,
            lanes=self._ring.formats.lanes)
        return Update(weights=update.weights, master=update.master, state=update.state, total=update.total,
                      traffic=self._together(*update.traffic))

    def _together(self, sums: list[Traffic], updates: list[Traffic], gathers: list[Traffic]) -> Traffic:
        """Combine the traffic of a step; hops in row rings come before hops in column rings. The bound is the sum of
        the largest bound of each phase: the rows' sums, the columns' updates and the weight gathers."""
        rows, columns = self._rows, self._columns
        gather, = gathers
        sizes = [len(block) for block in block_indices(len(self.master), columns)]
        # Column c owns block (c + 1) mod C.
        parts = np.array([sizes[(column + 1) % columns] for column in range(columns)]) / max(len(self.master), 1)

        def spread(words: list[npt.NDArray[np.int64]], *, by_row: bool) -> npt.NDArray[np.int64]:
            """Return the words per hop and node, given the words of each row ring or column ring."""
            together = np.stack(words, axis=1 if by_row else 2)  # shape (hops, rows, columns)
            return together.reshape(len(together), rows * columns)

        return Traffic(
            scatter_words=np.concatenate([spread([ring.scatter_words for ring in sums], by_row=True),
                                          spread([ring.scatter_words for ring in updates], by_row=False)]),
            gather_words=np.concatenate([spread([ring.gather_words for ring in updates], by_row=False),
                                         spread([gather.gather_words] * rows, by_row=True)]),
            dense_words=sum(ring.dense_words for ring in (*sums, *updates)) + rows * gather.dense_words,
            density=np.concatenate([np.mean([ring.density for ring in sums], axis=0),
                                    (parts[:, np.newaxis] * [ring.density for ring in updates]).sum(axis=0)]),
            scatter_bound=max(ring.scatter_bound for ring in sums) + max(ring.scatter_bound for ring in updates),
            bound=max(ring.bound for ring in sums) + max(ring.bound for ring in updates) + gather.bound,
            gather_elements=sum(ring.gather_elements for ring in updates) + rows * gather.gather_elements,
            gather_payload=sum(ring.gather_payload for ring in updates) + rows * gather.gather_payload)
