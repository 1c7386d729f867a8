"""Golden model of two-dimensional sums on R rows and C columns of nodes, where each row and column is a ring.

First, gradients are summed along rows: each node of a row keeps the sum of one of C blocks, partitioned by groups.
Then these blocks are partitioned again among R nodes and summed along columns, and rows distribute the results to all
nodes. The order of a sum follows both rings: ``(row a) + (row b) + …``. Each row's sum begins at the column of the
element's block, and the sum over rows begins at the row of its block within the column. A flat ring of R · C nodes
gives the same bits if all sums are exact, but not in general.

A fused update consists of three commands: REDUCE_SCATTER along rows; FUSED_UPDATE along columns, on the node's own
block of its row, where consecutive groups are C groups apart; and ALL_GATHER along rows.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden import optimizer, ring
from sim.golden.codecs import CODECS, RAW, ZERO_VALUE, Codec

__all__ = ["GridUpdate", "fused_update", "owned"]

Bits = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridUpdate:
    """Result of a two-dimensional fused update."""

    #: New weights, weights before the codec, and sum of gradients, each for the entire vector.
    weights: Bits
    master: Bits
    total: Bits
    state: list[Bits]  # state planes of the whole vector
    #: Gradient memories afterwards, with shape (R, C, K): each node's block of its row contains the row's sum.
    gradients: Bits
    words: npt.NDArray[np.int64]  # number of words sent by each node, including headers and CRCs, with shape (R, C)
    packets: npt.NDArray[np.int64]  # number of packets sent by each node, with shape (R, C)
    #: Traffic of the sum in each row, of the update in each column, and of the all-gather, which is the same in each
    #: row.
    traffic: tuple[list[ring.Traffic], list[ring.Traffic], list[ring.Traffic]]


def owned(length: int, rows: int, columns: int) -> list[list[Indices]]:
    """Indices of the elements that the node in each row and column updates, in order.

    Column c owns block (c + 1) mod C of the vector, and row r owns block (r + 1) mod R of the groups in that block.
    """
    blocks = ring.block_indices(length, columns)
    return [[blocks[(column + 1) % columns][ring.block_indices(len(blocks[(column + 1) % columns]), rows)[
        (row + 1) % rows]] for column in range(columns)] for row in range(rows)]


def _packets(length: int, nodes: int, segment: int, phases: int) -> int:
    """Number of packets that a node of a ring sends in ``phases`` phases of a collective."""
    return phases * (nodes - 1) * len(ring.segment_indices(length, nodes, segment)[0])


def fused_update(gradients: Bits, weights: Bits, state: list[Bits], settings: optimizer.Settings, *,
                 packed_state: bool = False, weight_codec: Codec = CODECS[RAW],
                 gradient_codec: Codec = CODECS[ZERO_VALUE], residuals: Bits | None = None, segment: int = 256,
                 lanes: int = 4) -> GridUpdate:
    """Sum gradients along rows and columns, update each element at its owner, and distribute the weights.

    Parameters are as in :func:`sim.golden.ring.fused_update`; ``gradients`` and ``residuals`` have shape (R, C, K).
    Along rows, new weights pass through the codec once more, which leaves them unchanged.
    """
    rows, columns, length = gradients.shape
    options: dict[str, Any] = {"segment": segment, "lanes": lanes}
    summed = gradients.copy()
    words, packets = (np.zeros((rows, columns), dtype=np.int64) for _ in range(2))
    left = np.zeros_like(gradients) if residuals is None else residuals
    sums, updates = [], []
    for row in range(rows):
        summed[row], traffic = ring.reduce_scatter(gradients[row], gradient_codec=gradient_codec,
                                                   residuals=left[row], **options)
        sums.append(traffic)
        words[row] += traffic.words
        packets[row] += _packets(length, columns, segment, 1)

    new_weights, master, total = (np.empty(length, dtype=np.uint32) for _ in range(3))
    new_state = [np.empty(length, dtype=np.uint32) for _ in state]
    gathered = np.zeros((columns, length), dtype=np.uint32)  # weight memories of a row; 0 for unused elements
    for column, index in enumerate(ring.block_indices(length, columns)[(number + 1) % columns]
                                   for number in range(columns)):
        own = left[:, column, index]
        update = ring.fused_update(summed[:, column, index], weights[index], [plane[index] for plane in state],
                                   settings, packed_state=packed_state, weight_codec=weight_codec,
                                   gradient_codec=gradient_codec, residuals=own, **options)
        left[:, column, index] = own
        for whole, part in ((gathered[column], update.weights), (master, update.master), (total, update.total),
                            *zip(new_state, update.state, strict=True)):
            whole[index] = part
        updates.append(update.traffic)
        words[:, column] += update.traffic.words
        packets[:, column] += _packets(len(index), rows, segment, 2)

    new_weights, traffic = ring.all_gather(gathered, weight_codec=weight_codec, **options)
    words += traffic.words
    packets += _packets(length, columns, segment, 1)
    return GridUpdate(weights=new_weights, master=master, total=total, state=new_state, gradients=summed, words=words,
                      packets=packets, traffic=(sums, updates, [traffic]))
