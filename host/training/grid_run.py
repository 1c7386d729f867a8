"""Steps of training in rings of two dimensions: on the nodes, and in the golden model."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import VectorRing
from host.driver.results import Outcome
from host.driver.words import Vector
from host.topology.grid import Plan, Shape
from host.training.golden_run import Reference
from host.training.schedule import Execution

if TYPE_CHECKING:
    from sim.golden.ring import Traffic, Update

__all__ = ["GridExecution", "GridReference", "reference_of"]

Bits = npt.NDArray[np.uint32]


class GridExecution(Execution):
    """Steps of a run, each of which is a fused update in two dimensions.

    Parameters
    ----------
    length : int
        Elements of the vectors.
    """

    def update(self) -> Outcome:
        return self._ring.collectives.fused_update(self._length)

    def warm_up(self) -> None:
        self.update()


class GridReference(Reference):
    """Golden model of a training run in two dimensions.

    Parameters
    ----------
    rows, columns : int
        Rows and columns of enabled nodes.
    options
        Those of :class:`~host.training.golden_run.Reference`.
    """

    def __init__(self, ring: VectorRing, *options: Any, rows: int, columns: int):
        super().__init__(ring, *options)
        from sim.golden import grid

        self._grid = grid
        self._rows, self._columns = rows, columns

    @property
    def equivalent_nodes(self) -> float:
        """At hop h of a row, sums of h nodes are sent, and at hop h of a column, of h whole rows."""
        rows, columns = self._rows, self._columns
        hops = rows + columns - 2
        return columns * (columns - 1 + rows * (rows - 1)) / hops if hops else 1

    def _update(self, gradients: Bits, settings: Settings | FixedSettings, elements: slice, turn: int,
                residuals: Bits | None) -> "Update":
        numbers, packed_state = self._numbers(settings)
        shape = (self._rows, self._columns, -1)
        update = self._grid.fused_update(
            gradients.reshape(shape), self.master, self.state, numbers, packed_state=packed_state,
            weight_codec=self._codec, gradient_codec=self._gradient_codec,
            residuals=None if residuals is None else residuals.reshape(shape), segment=self._ring.formats.segment,
            lanes=self._ring.formats.lanes)
        whole: Update = self._golden.Update(weights=update.weights, master=update.master, state=update.state,
                                            total=update.total, traffic=self._together(*update.traffic))
        return whole

    def _together(self, sums: list["Traffic"], updates: list["Traffic"], gathers: list["Traffic"]) -> "Traffic":
        """Traffic of a step. Hops of rows come before those of columns; bounds are those of the rows, the columns
        and the gathering that have most to do, one after the other."""
        rows, columns = self._rows, self._columns
        gather, = gathers
        sizes = [len(block) for block in self._golden.block_indices(len(self.master), columns)]
        # Column c has block (c + 1) mod C.
        parts = np.array([sizes[(column + 1) % columns] for column in range(columns)]) / max(len(self.master), 1)

        def spread(words: list[npt.NDArray[np.int64]], *, by_row: bool) -> npt.NDArray[np.int64]:
            """Words of each node at each hop, from those of each row or column."""
            together = np.stack(words, axis=1 if by_row else 2)  # hops, rows, columns
            return together.reshape(len(together), rows * columns)

        return self._traffic(
            scatter_words=np.concatenate([spread([one.scatter_words for one in sums], by_row=True),
                                          spread([one.scatter_words for one in updates], by_row=False)]),
            gather_words=np.concatenate([spread([one.gather_words for one in updates], by_row=False),
                                         spread([gather.gather_words] * rows, by_row=True)]),
            dense_words=sum(one.dense_words for one in (*sums, *updates)) + rows * gather.dense_words,
            density=np.concatenate([np.mean([one.density for one in sums], axis=0),
                                    (parts[:, np.newaxis] * [one.density for one in updates]).sum(axis=0)]),
            scatter_bound=max(one.scatter_bound for one in sums) + max(one.scatter_bound for one in updates),
            bound=max(one.bound for one in sums) + max(one.bound for one in updates) + gather.bound,
            gather_elements=sum(one.gather_elements for one in updates) + rows * gather.gather_elements,
            gather_payload=sum(one.gather_payload for one in updates) + rows * gather.gather_payload)


def reference_of(ring: VectorRing, plan: Plan | None, weights: Vector, planes: int,
                 centroids: Bits | None = None) -> Reference:
    """Golden model of the nodes of a ring, or of the rings of a plan."""
    if plan is None or plan.shape is not Shape.GRID:
        return Reference(ring, weights, planes, centroids)
    row, column = plan.settings[plan.order[0]].seats
    assert row is not None
    assert column is not None
    return GridReference(ring, weights, planes, centroids, rows=column.size, columns=row.size)
