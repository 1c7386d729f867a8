import contextlib
import dataclasses
import fcntl
import functools
import os
import pty
import threading
import time
import tty

import numpy as np
import pytest

import host.transports.serial_board
from hdl.board import BOARDS
from hdl.control.protocol import EventStatus, Operation, Space
from host.driver.command import Command
from host.driver.device import Device
from host.driver.ring import Ring
from host.models.digits import digits
from host.run import steps
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.transports.serial_board import SerialBoard
from host.transports.serial_link import BoardResetError, LinkError, LinkLostError
from host.transports.session import TransportName, open_session
from sim.verilated.board import Faults
from tests.host.board import CONFIG, devices_of, open_link
from tests.host.conftest import verilated
from tests.refusals import refuses
from tests.words import random_words

JOB = TrainingConfig(epochs=1, batch=800, hidden=(), seed=3)


def outcome(ring, *, job=JOB, **options):
    """Result of a short training job: losses, accuracies, and the bits of the weights."""
    training = train(ring, digits(), job, **options)
    assert training.bit_exact
    return training.losses, training.measures, ring.memory.read_weights(650).view(np.uint32).tolist()


@functools.cache
def expected(job=JOB):
    """Result of the same job on a ring of nodes with another configuration, simulated in this process."""
    with verilated() as devices:
        ring = Ring(devices)
        ring.connect()
        return outcome(ring, job=job)


# Tests of training.


def test_trains_as_in_process():
    with open_session(CONFIG, nodes=2, transport=TransportName.BOARD) as session:
        job = dataclasses.replace(JOB, max_steps=1)
        assert outcome(session.ring, job=job) == expected(job)
        assert session.cycle > 500_000


def test_trains_over_a_bad_cable():
    with open_link(faults=Faults(seed=5)) as (board, link):
        ring = Ring(devices_of(link))
        ring.connect()
        assert outcome(ring) == expected()
        board.set_faults(None)
        seen, counters = link.board_counters(), link.counters
        assert counters.retries > 0
        assert counters.requests > 0
        assert counters.crc_errors + counters.resyncs > 0
        assert seen["crc_errors"] + seen["resyncs"] > 0
        assert seen["gaps"] > 0


def test_goes_on_when_the_cable_is_back():
    said = []
    with open_link(persistence=20, announce=said.append) as (board, link):
        ring = Ring(devices_of(link))
        ring.connect()

        def pull(training):
            # While the second step's gradients are transferred, unplug the board for a short time.
            if len(training.steps) == 1 and not said:
                threading.Timer(0.1, board.unplug).start()
                threading.Timer(0.5, board.plug).start()

        assert outcome(ring, on_step=pull) == expected()
        assert link.counters.reconnects == 1
        assert len(said) == 2
        assert "the connection is lost" in said[0]
        assert said[0].endswith("waiting 20 s for it to come back")
        assert said[1] == f"{board.path}: connected again"


# Tests with disconnected cables.


def test_an_unplugged_cable_is_an_error_at_once_and_no_end():
    with open_link() as (board, link):
        devices = devices_of(link)
        payload = random_words(CONFIG.memories.gradient)
        devices[0].write_memory(Space.GRADIENT, 0, payload)
        pending = [device.submit_read_memory(Space.GRADIENT, 0, payload.size) for device in devices]
        threading.Timer(0.05, board.unplug).start()
        begun = time.monotonic()
        with pytest.raises(LinkLostError, match=r"tty: the connection is lost .*; plug the board in and connect"):
            all(request.result().size for request in pending)
        assert time.monotonic() - begun < 2
        with pytest.raises(LinkLostError):
            devices[0].ping(payload[:1])
        board.plug()
        link.reconnect()
        assert np.array_equal(pending[0].result(), payload)
        assert pending[1].result().size == payload.size
        assert devices[1].ping(payload[:3]).tolist() == payload[:3].tolist()
        # If another program opens or resets the board, data in transit is lost.
        board.unplug()
        with pytest.raises(LinkLostError):
            devices[0].ping(payload[:1])
        with pytest.raises(LinkLostError, match=r"did not come back within 0\.2 s"):
            link.reconnect(0.2)
        board.plug()
        with SerialBoard(board.path, nodes=1, clock=board.time) as other:
            assert np.array_equal(Device(other.transports[0], CONFIG).read_memory(Space.GRADIENT, 0, 9), payload[:9])
        with pytest.raises(BoardResetError, match="the board has been reset, or opened by someone else"):
            link.reconnect()


def test_a_new_link_takes_over_in_the_middle_of_anything():
    payload = random_words(CONFIG.memories.gradient)
    with open_link() as (board, link):
        devices = devices_of(link)
        devices[1].submit_pop_event(3_000)
        devices[1].submit_ping(payload[:5])
        devices[0].submit_write_memory(Space.GRADIENT, 0, payload)
        link.close()
        with SerialBoard(board.path, nodes=2, frequency=board.frequency, clock=board.time) as link:
            devices = devices_of(link)
            for device in devices:
                device.connect()
                assert device.ping(payload[:7]).tolist() == payload[:7].tolist()
            devices[0].write_memory(Space.GRADIENT, 0, payload)
            assert np.array_equal(devices[0].read_memory(Space.GRADIENT, 0, payload.size), payload)


def test_requests_are_executed_once():
    """Each command runs exactly once, even if a tenth of the small frames is damaged in each direction."""
    with open_link(faults=Faults(flip=0.004, drop=0.0005, seed=8)) as (board, link):
        device = devices_of(link)[0]
        device.connect()
        tags = []
        for tag in range(40):
            device.push(Command(operation=Operation.QUIESCE, tag=tag))
            if tag >= 3:
                tags.append(device.pop_event(10_000).tag)
        while (event := device.pop_event(0)) is not None:
            assert event.status is EventStatus.OK
            tags.append(event.tag)
        assert tags == list(range(40))
        board.set_faults(None)
        assert link.counters.retries > 0
        assert link.board_counters()["repeats"] > 0


def test_rate():
    """Bursts of memory accesses use most of the line rate, at a latency of 1.5 ms in each direction."""
    delay = int(0.0015 * 12e6)
    with open_link(nodes=1, delay=delay) as (board, link):
        device = devices_of(link)[0]
        device.connect()
        payload, count = random_words(CONFIG.memories.gradient), 6
        rates = []
        for submit in (lambda: device.submit_write_memory(Space.GRADIENT, 0, payload),
                       lambda: device.submit_read_memory(Space.GRADIENT, 0, payload.size)):
            begun = board.cycle
            for pending in [submit() for _ in range(count)]:
                pending.result()
            rates.append(4 * count * payload.size * 40 / (board.cycle - begun - 2 * delay))
        assert min(rates) > 0.8, rates
        assert max(rates) < 0.97, rates
        assert link.counters.retries == 0


# Tests of serial ports without a board.


@contextlib.contextmanager
def terminal(echo=False):
    """A pseudo-terminal to which no board is attached."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    closing = threading.Event()
    os.set_blocking(master, False)

    def give_back():
        while not closing.wait(0.005):
            with contextlib.suppress(BlockingIOError):
                data = os.read(master, 4096)
                if echo:
                    os.write(master, data)

    thread = threading.Thread(target=give_back)
    thread.start()
    try:
        yield os.ttyname(slave)
    finally:
        closing.set()
        thread.join()
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("echo", [False, True])
def test_no_board(echo, monkeypatch):
    monkeypatch.setattr(host.transports.serial_board, "_OPEN_PATIENCE", 0.4)
    with terminal(echo) as path:
        message = (r"the board gave no answer within 0\.4 s; check that it is a board of gradring, configured, and "
                   r"built for 115200 baud")
        with pytest.raises(LinkLostError, match=message):
            SerialBoard(path, baud=115_200, silence=0.3)
        # The port must not become the controlling terminal of this process, because closing it would send a hangup
        # signal.
        held = os.open(path, os.O_RDWR | os.O_NOCTTY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(LinkError, match=r"cannot be opened .*; check that no other program has it open"):
                SerialBoard(path)
        finally:
            os.close(held)


def test_no_port():
    message = (r"^/dev/ttyNOWHERE: cannot be opened at 3000000 baud .*; there is no such port: check that the board "
               r"is plugged in")
    with pytest.raises(LinkError, match=message):
        SerialBoard("/dev/ttyNOWHERE")


def test_too_many_nodes():
    with open_link(nodes=1) as (board, link):
        link.close()
        with pytest.raises(LinkError, match=r"nodes must be at most the 2 of the board, not 3$"):
            SerialBoard(board.path, nodes=3, clock=board.time)


@pytest.mark.parametrize(("options", "message"), [
    ({"baud": 0}, "Baud rate must be a positive integer, not 0"),
    ({"nodes": 17}, "Node count must be between 1 and 16, not 17"),
    ({"frequency": 0}, "Frequency must be above 0, not 0"),
])
def test_parameters(options, message):
    refuses(message, SerialBoard, "/dev/null", **options)
    refuses("Flip rate must be between 0 and 1, not 2", Faults, flip=2)


# Tests of the command line.


@pytest.mark.parametrize(("arguments", "message"), [
    (["--device", "/dev/ttyNOWHERE"], "there is no such port"),
    (["--transport", "serial"], "Serial port must be given for transport serial, and for no other, not None"),
    (["--device", "/dev/null", "--board", "toaster"], f"Board must be one of {', '.join(BOARDS)}, not 'toaster'"),
])
def test_command_line(program, arguments, message, tmp_path):
    code, _, err = program("train", "--output", tmp_path, *arguments)
    assert code == 1
    assert message in err


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--board", "colorlight-5a-75b"], {"baud": 1_000_000, "frequency": 62_500_000}),
    (["--board", "icebreaker", "--baud", "115200"], {"baud": 115_200, "frequency": 24_000_000}),
    (["--board", "ulx3s-85f", "--nodes", "1"], {"nodes": 1, "baud": 3_000_000, "frequency": 62_500_000}),
    (["--board", "ulx3s-85f-compute", "--hidden", "64", "--compute", "node", "--batch", "36"], {"nodes": 1}),
])
def test_what_a_board_was_built_for(program, arguments, expected, monkeypatch, tmp_path):
    """The board determines the configuration, number of nodes and rates, unless the command line overrides them."""
    opened = []

    @contextlib.contextmanager
    def open_session(config, **options):
        opened.append((config, options))
        raise LinkError("enough")
        yield

    monkeypatch.setattr(steps, "open_session", open_session)
    program("train", "--hidden", "none", "--output", tmp_path, "--device", "/dev/null", *arguments)
    [(config, options)] = opened
    board = BOARDS[arguments[1]]
    assert config == board.node
    for name, value in {"nodes": board.nodes, **expected}.items():
        assert options[name] == value
