from tests.features.far.guard_model import FarGuard, Inputs


def cycle(row=None, *, write=False, ready=True, answers=False, link_reset=False):
    return Inputs(row=row, write=write, ready=ready, answers=answers, link_reset=link_reset)


def play(*inputs):
    """Rows 0 to 31 of a window that begins at row 16."""
    model = FarGuard(16, 32)
    return [model.step(one) for one in inputs]


def test_rows_inside():
    first, waits, answer, behind = play(
        cycle(0), cycle(31, ready=False), cycle(31, write=True, answers=True), cycle())
    assert (first.asked, first.ready, first.stray) == (16, True, False)
    assert (waits.asked, waits.ready, waits.owes) == (47, False, True)
    assert (answer.asked, answer.ready, answer.given) == (47, True, False)
    assert (behind.given, behind.zeros, behind.owes) == (True, False, False)


def test_rows_outside():
    """A write is dropped at once; a read waits for what is owed, and is told when it is taken."""
    shown = play(cycle(5), cycle(32, write=True, ready=False), cycle(32), cycle(32, answers=True), cycle(32), cycle())
    assert [one.asked for one in shown] == [21, None, None, None, None, None]
    assert [one.ready for one in shown] == [True, True, False, False, True, False]
    assert [one.stray for one in shown] == [False, False, True, False, False, True]
    assert [one.zeros for one in shown] == [False] * 5 + [True]
    assert [one.given for one in shown] == [False] * 4 + [True, False]


def test_answers_of_before_a_link_reset():
    """They are dropped, and reads wait for them; writes do not."""
    shown = play(cycle(1), cycle(2, link_reset=True), cycle(3), cycle(4, write=True), cycle(3, answers=True),
                 cycle(3, answers=True), cycle(3), cycle(answers=True), cycle())
    assert [one.asked for one in shown] == [17, 18, None, 20, None, None, 19, None, None]
    assert [one.owes for one in shown] == [False] + [True] * 5 + [False, True, False]
    assert [one.given for one in shown] == [False] * 8 + [True]
