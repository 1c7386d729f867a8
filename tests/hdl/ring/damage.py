"""Damage packet streams at one position, and return the model's verdicts on the packets."""

from sim.golden.packet import ABORT, Header, checksum, verdict
from tests.hdl.ring.packets import (
    EPOCH,
    extra_of,
    framed,
    split,
)


def damage(generator, beats):
    """Damage a packet stream at one position, as a link or a faulty or malicious peer may do."""
    beats = [dict(beat) for beat in beats]
    at = generator.randrange(len(beats))
    kind = generator.choice(["data", "last", "lost", "doubled", "swapped", "trailer", "noise"])
    if kind == "data":
        beats[at]["data"] ^= 1 << generator.randrange(32)
    elif kind == "last":
        beats[at]["last"] ^= 1
    elif kind == "lost":
        del beats[at]
    elif kind == "doubled":
        beats.insert(at, dict(beats[at]))
    elif kind == "swapped":
        other = generator.randrange(len(beats))
        beats[at], beats[other] = beats[other], beats[at]
    elif kind == "noise":
        for beat in beats[at : at + generator.randrange(1, 9)]:
            beat["data"] = generator.getrandbits(32)
    packets, rest = split(beats)
    if kind == "trailer" and packets:
        # Change words of a packet and correct its CRC, or stomp the packet.
        index = generator.randrange(len(packets))
        words = packets[index][:-1]
        for _ in range(generator.randrange(1, 3)):
            if words:
                words[generator.randrange(len(words))] ^= 1 << generator.randrange(32)
                del words[len(words) - generator.choice([0, 0, 1]) :]
        packets[index] = [*words, checksum(words) ^ generator.choice([0, 0xFFFFFFFF])]
        beats = [beat for words in packets for beat in framed(words)]
        packets, rest = split(beats)
    return beats, packets, rest


def judge(packets, rest, headers):
    """Return the model's verdicts up to the first rejection, if any, and the number of words accepted by then."""
    verdicts, taken, records = [], 0, list(headers)
    for words in [*packets, rest]:
        header = Header.parse(words)
        needless = (header.epoch - EPOCH) % 256 >= 128 or (header.type == ABORT and header.epoch == EPOCH)
        whole = words is not rest
        if not records and not needless and not (whole and len(words) == 1):
            break  # the packet waits for a record to compare it with
        taken += len(words)
        if whole:
            due = records[0] if records else None
            verdicts.append(verdict(words, due, epoch=EPOCH, extra=extra_of(due)))
            if verdicts[-1].code is not None:
                break
            if not needless:
                records.pop(0)
    return verdicts, taken
