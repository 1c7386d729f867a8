"""Simulated board with two small nodes, built only once and shared by tests."""

import contextlib
import functools

from hdl.board import BOARDS
from hdl.features.settable_version.feature import SettableVersion
from host.driver.device import Device
from host.transports.serial_board import SerialBoard
from sim.verilated.board import RATES, SimulatedBoard, board_library

#: Nodes whose update count can be set, so that runs can be moved to them.
CONFIG = BOARDS["simulated"].node.replace(features=(SettableVersion(),))


@functools.cache
def library():
    """Library of the simulated board, built at most once per test run."""
    return board_library(CONFIG, nodes=2)


@contextlib.contextmanager
def open_link(*, nodes=2, faults=None, delay=0, **options):
    """Open a simulated board and a link to it."""
    with SimulatedBoard(library(), **RATES, faults=faults, delay=delay) as board:
        with SerialBoard(board.path, nodes=nodes, frequency=board.frequency, clock=board.time, **options) as link:
            yield board, link


def devices_of(link):
    return [Device(transport, CONFIG, name=f"node {n}") for n, transport in enumerate(link.transports)]
