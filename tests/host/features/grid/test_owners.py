"""Owners of elements in the rings of a grid, and changes of owners: host/features/grid/owners.py."""

import itertools

import numpy as np
import pytest

from host.features.grid.grid import Part, Shape, Topology, TopologyError
from host.features.grid.owners import hand_over, moved, owners
from sim.golden import ring as golden
from sim.golden.features.grid import grid

OWNING = (Shape.FLAT, Shape.GRID)


def plan_of(rows, columns, disabled="", shape=Shape.FLAT):
    return Topology(rows, columns).disable(*map(Part.parse, disabled.split())).plan(shape)


def random_plan(generator, rows, columns):
    """Grid topology plan in which random nodes and cards are disabled and each element has exactly one owner."""
    while True:
        off = [f"node{node}" for node in range(rows * columns) if generator.random() < 0.25]
        off += [f"card{row}" for row in range(rows) if generator.random() < 0.2]
        try:
            return plan_of(rows, columns, " ".join(off), OWNING[int(generator.integers(2))])
        except TopologyError:
            continue


class TestOwners:
    def test_flat(self):
        """In a flat ring, rank r owns block r + 1."""
        plan = plan_of(2, 2, "node3")
        owned = owners(plan, 100)
        assert plan.rings == ((0, 1, 2),)
        blocks = golden.block_indices(100, 3)
        for rank, node in enumerate(plan.rings[0]):
            assert np.array_equal(owned[node], blocks[(rank + 1) % 3])

    def test_grid(self):
        """Groups are partitioned among the nodes of a row, and each part is partitioned again among the nodes of a
        column."""
        owned = owners(plan_of(2, 3, shape=Shape.GRID), 32 * 13 + 5)
        for node, index in owned.items():
            row, column = divmod(node, 3)
            groups = [group for group in range(14)
                      if group % 3 == (column + 1) % 3 and group // 3 % 2 == (row + 1) % 2]
            expected = [element for element in range(32 * 13 + 5) if element // 32 in groups]
            assert index.tolist() == expected

    def test_grid_of_the_golden_model(self):
        """Nodes own the same elements as in the golden 2-D update, even if a row and a column are bypassed."""
        for rows, columns, disabled in ((2, 4, ""), (3, 2, ""), (4, 4, "card2 node1 node5 node13")):
            plan = plan_of(rows, columns, disabled, Shape.GRID)
            left = sorted({node // columns for node in plan.active}), sorted({node % columns for node in plan.active})
            expected = grid.owned(1000, len(left[0]), len(left[1]))
            owned = owners(plan, 1000)
            assert len(owned) == len(left[0]) * len(left[1])
            for row, column in itertools.product(range(len(left[0])), range(len(left[1]))):
                node = left[0][row] * columns + left[1][column]
                assert np.array_equal(owned[node], expected[row][column])

    @pytest.mark.parametrize("shape", [Shape.HORIZONTAL, Shape.VERTICAL])
    def test_rings_apart(self, shape):
        """If rows or columns are separate rings, the owners in each ring together own all elements."""
        plan = plan_of(2, 3, shape=shape)
        owned = owners(plan, 300)
        for ring in plan.rings:
            assert np.array_equal(np.sort(np.concatenate([owned[node] for node in ring])), np.arange(300))
        with pytest.raises(ValueError, match=r"^Elements must have one owner each, not \d: nodes of one flat ring or "
                                             r"of a grid own each element once$"):
            moved(owned, owned)


def test_owners_of_random_plans():
    """After random plan changes, each element has one owner; elements with new owners are counted."""
    generator = np.random.default_rng(7)
    for _ in range(200):
        rows, columns = (int(generator.integers(1, 5)) for _ in range(2))
        old, new = (random_plan(generator, rows, columns) for _ in range(2))
        length = int(generator.integers(1, 1500))
        before, after = owners(old, length), owners(new, length)
        assert set(after) == set(new.active)
        assert np.array_equal(np.sort(np.concatenate([*after.values()])), np.arange(length))
        stay = sum(len(np.intersect1d(before[node], after[node])) for node in set(before) & set(after))
        assert moved(before, after) == length - stay


class TestHandOver:
    def test_successor(self):
        """The values of a leaving node are added to those of the remaining node that has the next higher number."""
        old, new = plan_of(1, 5), plan_of(1, 5, "node1 node2 node4")
        rows = golden.bits(np.array([[1, 2], [4, 8], [16, 32], [64, 128], [256, 512]]))
        result = hand_over(dict(enumerate(rows)), old, new)
        assert result.heirs == {1: 3, 2: 3, 4: 0}
        sums = {node: golden.floats(row).tolist() for node, row in result.rows.items()}
        assert sums == {0: [257, 514], 3: [84, 168]}
        assert result.dropped == 0

    def test_order_of_additions(self):
        """If additions are rounded, their order is fixed: the heir's own values come first, then the leaving nodes'
        values in order of their numbers."""
        old, new = plan_of(1, 4), plan_of(1, 4, "node0 node1 node2")
        rows = golden.bits(np.array([[1.0], [2.0**-24], [2.0**-24], [2.0**-24]]))
        rounded = hand_over(dict(enumerate(rows)), old, new).rows[3]
        assert golden.floats(rounded).tolist() == [1.0]  # adding the small values first would give 1 + 2**-22

    def test_in_two_dimensions(self):
        """A leaving node's heir is in the same row or, if a whole card leaves, in the same column. Otherwise, it is
        the lowest node."""
        rows = {node: golden.bits([2.0**node]) for node in range(9)}
        old = plan_of(3, 3, shape=Shape.GRID)
        heirs = hand_over(rows, old, plan_of(3, 3, "node1 node4 node7", Shape.GRID)).heirs
        assert heirs == {1: 2, 4: 5, 7: 8}
        heirs = hand_over(rows, old, plan_of(3, 3, "card1", Shape.GRID)).heirs
        assert heirs == {3: 6, 4: 7, 5: 8}
        heirs = hand_over(rows, old, plan_of(3, 3, "card1 node2 node8", Shape.GRID)).heirs
        assert heirs == {2: 0, 3: 6, 4: 7, 5: 0, 8: 6}

    def test_all_leave(self):
        """If all old nodes leave, the lowest joining node receives the sum of their values."""
        old, new = plan_of(2, 2, "card0"), plan_of(2, 2, "card1")
        result = hand_over({2: golden.bits([1.0]), 3: golden.bits([2.0])}, old, new)
        assert result.heirs == {2: 0, 3: 0}
        assert golden.floats(result.rows[0]).tolist() == [3.0]
        assert golden.floats(result.rows[1]).tolist() == [0.0]

    def test_not_finite(self):
        """A sum of handed-over values outside the binary32 range becomes zero and is counted."""
        old, new = plan_of(1, 2), plan_of(1, 2, "node1")
        most = np.finfo(np.float32).max
        result = hand_over({0: golden.bits([most, 1.0]), 1: golden.bits([most, 1.0])}, old, new)
        assert golden.floats(result.rows[0]).tolist() == [0.0, 2.0]
        assert result.dropped == 1

    def test_nothing_lost(self):
        """If all additions are exact, a hand-over preserves the sum of the values of all nodes; it never modifies its
        input."""
        generator = np.random.default_rng(8)
        for _ in range(200):
            rows, columns = (int(generator.integers(1, 5)) for _ in range(2))
            old, new = (random_plan(generator, rows, columns) for _ in range(2))
            values = generator.integers(-1000, 1000, (rows * columns, 7)).astype(np.float32)
            old_rows = {node: golden.bits(values[node]) for node in old.active}
            before = {node: row.copy() for node, row in old_rows.items()}
            result = hand_over(old_rows, old, new)
            assert set(result.rows) == set(new.active)
            assert set(result.heirs) == set(old.active) - set(new.active)
            total = sum(golden.floats(row).astype(np.float64) for row in result.rows.values())
            assert np.array_equal(total, values[list(old.active)].astype(np.float64).sum(axis=0))
            for node, row in result.rows.items():
                if node not in result.heirs.values():
                    assert np.array_equal(row, old_rows.get(node, np.zeros(7, np.uint32)))
            assert all(np.array_equal(old_rows[node], before[node]) for node in old_rows)
