"""Check the golden model of program banks against results worked out by hand."""

import pytest

from hdl.control.protocol import Opcode, Status
from tests.features.programs.program_banks_model import ProgramBanks, digest_of

IDLE = 1 << 23
COMMAND = list(range(16))


def load(banks, *, model, idle=True, queue=0, commands=1):
    header = model << 24 | queue << 16 | IDLE * idle
    body = [header, *(COMMAND * commands)]
    return banks.answer(Opcode.LOAD_PROGRAM, 16 * commands, body), body


def edit(banks, number, first, digest):
    return banks.answer(Opcode.EDIT, 2, [number | first << 16, digest])[0]


def run(banks, first, model, passes=1):
    status = banks.answer(Opcode.RUN, 3, [passes | model << 16, 0, first << 9])[0]
    return status


@pytest.fixture
def banks():
    """Program banks while set 4 of program 7 runs."""
    result = ProgramBanks(queues=3, depth=4)
    assert load(result, model=7, idle=False)[0] == (Status.OK, [16])
    assert run(result, 4, 7) == Status.OK
    return result


def test_an_edit_holds_from_its_set_on(banks):
    assert load(banks, model=8, idle=False)[0] == (Status.BUSY, [0])
    _, first = load(banks, model=8)
    _, second = load(banks, model=8, queue=2, commands=2)
    assert edit(banks, 1, 5, digest_of([*first, *second])) == Status.OK
    assert (banks.bank, banks.pending, banks.number, banks.latest) == (0, True, 0, 1)
    assert run(banks, 5, 8) == Status.BUSY
    banks.running = False
    assert run(banks, 5, 7) == Status.NOT_LOADED  # rejected: the edit requires program 8
    assert run(banks, 4, 8) == Status.NOT_LOADED  # rejected: the edit applies from set 5 on
    assert run(banks, 4, 7) == Status.OK  # set 4 may run again; the edit is still pending
    banks.running = False
    assert run(banks, 5, 8) == Status.OK
    assert (banks.bank, banks.pending, banks.number, banks.set) == (1, False, 1, 5)
    assert banks.current.lengths == [1, 0, 2]
    assert banks.current.programs == [[tuple(COMMAND)], [], [tuple(COMMAND)] * 2]


def test_refused(banks):
    _, body = load(banks, model=8)
    digest = digest_of(body)
    for first in (3, 4, 6):
        assert edit(banks, 1, first, digest) == Status.WRONG_SET
    assert edit(banks, 0, 5, digest) == Status.OLD_EDIT
    assert edit(banks, 1, 5, digest ^ 1) == Status.WRONG_PROGRAM
    assert banks.answer(Opcode.EDIT, 2, [1 | 5 << 16]) == (Status.BAD_LENGTH, [])
    assert banks.answer(Opcode.EDIT, 2, [1 | 5 << 16, digest, 0]) == (Status.BAD_LENGTH, [])
    assert edit(banks, 3, 5, digest) == Status.OK
    for number in (1, 3):
        assert edit(banks, number, 5, digest) == Status.OLD_EDIT
    load(banks, model=9)  # a load cancels the edit
    assert not banks.pending
    banks.running = False
    assert run(banks, 5, 7) == Status.OK


def test_a_short_load_is_no_program(banks):
    body = [8 << 24 | IDLE, *COMMAND, 1]
    assert banks.answer(Opcode.LOAD_PROGRAM, 32, body) == (Status.BAD_LENGTH, [17])
    assert edit(banks, 1, 5, digest_of([8 << 24 | IDLE, *COMMAND, *COMMAND])) == Status.WRONG_PROGRAM


def test_a_run_of_several_passes_is_as_many_sets(banks):
    banks.running = False
    assert run(banks, 5, 7, passes=3) == Status.OK
    _, body = load(banks, model=8)
    assert edit(banks, 1, 6, digest_of(body)) == Status.WRONG_SET
    assert edit(banks, 1, 8, digest_of(body)) == Status.OK
