"""Test the golden model of a link with retransmission: link_model.py and line_model.py."""

import pytest

from tests.features.replay.check_model import crc8
from tests.features.replay.line_model import MESSAGE, Listener, Message, Speaker
from tests.features.replay.link_model import Transmitter, Word, restart_word
from tests.features.replay.play import WIRES, Play, cut, flip, random_play


def stream(words, packet=70):
    return [(word * 0x9E3779B1 & 0xffffffff, int(word % packet == packet - 1)) for word in range(words)]


def test_restart_word():
    for start, type in ((0, 1), (1, 14)):
        data = type | 0x2A5 << 4 | 2 << 14
        assert restart_word(0x2A5, 2, start) == Word(1, data, 1, 1, crc8([*(data >> n & 1 for n in range(32)), 1, 1]))


def test_message():
    bits = Message(expect=0x201, given=5, id=2, recover=1).bits()
    assert bits[:22] == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1]
    assert len(bits) == MESSAGE
    assert crc8(bits) == 0
    assert Message.parse(bits) == Message(0x201, 5, 2, 1)
    for first in range(MESSAGE):
        for second in range(first, MESSAGE):
            assert Message.parse([bit ^ (n in (first, second)) for n, bit in enumerate(bits)]) is None
    assert Message.parse([1] * MESSAGE) is None
    assert Message.parse([0] * MESSAGE) is None


def test_cut_messages():
    """A message with a run of bits zeroed is never accepted with a wrong credit count."""
    for count in range(16):
        bits = Message(expect=0x155, given=count).bits()
        for first in range(1, 19):
            for end in range(max(first + 1, 12), MESSAGE + 1):
                seen = Message.parse([0 if first <= n < end else bit for n, bit in enumerate(bits)])
                assert seen is None or seen.given == count


def test_first_messages():
    """A shifted first message is rejected, even if it has a bit error, so the listener aligns reliably."""
    for id in range(4):
        line = [0] * MESSAGE + Message(id=id).bits() * 3
        for shift in range(2 * MESSAGE):
            if shift == MESSAGE:
                continue
            window = line[shift:shift + MESSAGE]
            for wrong in range(-1, MESSAGE):
                assert Message.parse([bit ^ (n == wrong) for n, bit in enumerate(window)]) is None


def test_line():
    speaker, listener = Speaker(), Listener()
    seen = []
    for cycle in range(40 + 4 * MESSAGE):
        listener.step(speaker.line, lost=False)
        speaker.step(Message(expect=cycle, recover=int(cycle >= 75)), start=cycle == 3)
        if listener.complete:
            seen.append((cycle, Message.parse(listener.complete)))
    # The message number is sampled in the first cycle of a message, and `recover` 21 cycles later.
    assert seen == [(64, Message(34, 0, 0, 0)), (94, Message(64, 0, 0, 1)), (124, Message(94, 0, 0, 1)),
                    (154, Message(124, 0, 0, 1))]


@pytest.mark.parametrize("latency", [0, 1, 16, 64, 200])
def test_clean(latency):
    """A clean link measures its latency exactly, and carries one word per cycle if the window permits."""
    play = Play(stream(800), segments=12, latency=latency).run(4000)
    play.assert_mended()
    assert (play.restarts, play.repeated, play.failed) == (0, 0, 0)
    assert play.transmitter.delay == latency
    assert play.fresh == 800
    if latency <= 64:
        assert play.moments[-1] - play.moments[0] == 799


def test_one_flipped_bit():
    """With 16-cycle wires, a flipped bit in word 5 costs one restart and at most 80 cycles."""
    clean = Play(stream(700), segments=12, latency=16).run(3000)
    at = clean.moments[5] - 4
    link = Play(stream(700), segments=12, latency=16, faults=lambda cycle: flip("data", 7) if cycle == at else None)
    link.run(3000).assert_mended()
    assert (link.restarts, link.failed) == (1, 1)
    assert 0 < link.moments[-1] - clean.moments[-1] <= 80
    assert link.repeated > 0
    assert link.fresh == 700


@pytest.mark.parametrize("wire", WIRES)
def test_every_moment(wire):
    """A bit error at any time costs one restart and at most 80 cycles, or nothing if it is on the return line."""
    clean = Play(stream(420), segments=12, latency=16).run(3000)
    for at in range(200, 200 + MESSAGE):
        link = Play(stream(420), segments=12, latency=16, faults=lambda c, at=at: flip(wire) if c == at else None)
        link.run(3000).assert_mended()
        assert link.restarts == (wire != "line")
        assert link.moments[-1] - clean.moments[-1] <= (0 if wire == "line" else 80)


@pytest.mark.parametrize("wire", ["valid", "check", "line"])
def test_start(wire):
    """A link starts despite a bit error at any time, even if a START is repeated before it is answered."""
    for latency in (3, 110):
        for at in range(0, 150, 1 if latency == 3 else 7):
            link = Play(stream(70), segments=12, latency=latency)
            link.faults = lambda cycle, at=at: flip(wire) if cycle == at else None
            link.run(4000).assert_mended()
            assert link.transmitter.delay == latency


@pytest.mark.parametrize("latency", [7, 60, 200])
def test_reset_shorter_than_the_wires(latency):
    """Words, STARTs and messages that were sent before a reset but arrive after it affect neither data nor latency.
    """
    for moment in range(1, 5 * latency + 300, 113):
        play = Play(stream(1500), segments=12, latency=latency,
                    resets=lambda cycle, moment=moment: moment <= cycle < moment + 4)
        while play.cycle < moment + 4:
            play.step()
        sent = play.sent[play._word:]
        play.received.clear()
        while len(play.received) < len(sent):
            assert play.cycle < 20_000, (moment, len(play.received))
            play.step()
        assert play.received == sent, moment
        assert play.transmitter.delay == latency, moment


@pytest.mark.parametrize("latency", [250, 480])
def test_long_wires(latency):
    """A link measures the correct latency if its second START is answered before the third START is sent."""
    play = Play(stream(600), segments=12, latency=latency).run(9000)
    play.assert_mended()
    assert play.transmitter.delay == latency


@pytest.mark.parametrize("wire", ["valid", "data", "line"])
def test_two_ports(wire):
    """A bit error at any time is repaired while two links start and packets alternate between them."""
    for at in range(0, 900, 17):
        play = Play(stream(70, packet=7), segments=3, latency=4, route=[0, 1] * 5)
        play.faults = lambda cycle, at=at: flip(wire) if cycle == at else None
        play.run(6000).assert_mended()


@pytest.mark.parametrize("seed", range(8))
def test_random(seed):
    """All words arrive in order despite faults on any wire, cuts, control words, and stalls anywhere."""
    play = random_play(seed).run(60_000)
    play.assert_mended()
    assert play.receiver.overrun == 0


class AgainstThePointer(Transmitter):
    """Faulty transmitter that accepts acknowledgements only up to the next word to send."""

    @property
    def flying(self):
        return (self.send - self.acknowledged) % 1024


def test_no_livelock():
    """A link recovers from an outage of the return line if it accepts numbers past the next word to send."""
    def outage(cycle):
        return (lambda word, line: (word, 0)) if 400 <= cycle < 1000 else None

    play = Play(stream(1400), segments=12, latency=16, faults=outage).run(3000)
    play.assert_mended()
    stuck = Play(stream(1400), segments=12, latency=16, faults=outage)
    stuck.transmitter = AgainstThePointer(segments=12)
    with pytest.raises(AssertionError, match=r"of 1400 words in 6000 cycles$"):
        stuck.run(6000)
    assert stuck.restarts > 10


class Impatient(Transmitter):
    """Faulty transmitter: after a restart that was not requested, it sends words without waiting for confirmation."""

    _holds = property(lambda self: False, lambda self, value: None)


@pytest.mark.parametrize("pace", [2, 5, 20])
def test_slow_wires(pace):
    """On slow wires, a damaged word costs at most the time of four windows; premature restarts would fill the wires.
    """
    clean = Play(stream(700), latency=8, pace=pace).run(20_000)
    clean.assert_mended()
    assert clean.restarts == 0

    def play(model):
        link = Play(stream(700), latency=8, pace=pace,
                    faults=lambda cycle: flip("data") if 300 <= cycle < 300 + pace else None)
        link.transmitter = model(segments=3)
        return link

    link = play(Transmitter).run(40_000)
    link.assert_mended()
    assert link.failed == 1
    assert link.cycle - clean.cycle <= 4 * 256 * pace
    assert len(link.wires[0]) <= 256
    if pace == 20:
        stuck = play(Impatient)
        with pytest.raises(AssertionError, match=r"of 700 words in 40000 cycles$"):
            stuck.run(40_000)
        assert len(stuck.wires[0]) > 1_000


def test_no_end():
    """If the wires are cut permanently, no words are received, and restarts continue."""
    play = Play(stream(700), segments=12, latency=16, faults=lambda cycle: cut if cycle > 300 else None)
    with pytest.raises(AssertionError, match=r"words in 2000 cycles$"):
        play.run(2000)
    assert play.restarts > 5
    assert play.received == play.sent[:len(play.received)]
