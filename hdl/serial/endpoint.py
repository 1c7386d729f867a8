"""Endpoint of a node on the serial link, which transfers every packet word exactly once and in order."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.ring.topology import SMALL_RING
from hdl.serial.frame import MAX_WORDS, FrameKind, header_layout
from hdl.streams.stream import word_layout

__all__ = ["VERSION", "Endpoint", "check_sizes"]

VERSION = 1
"""Version of the protocol in docs/serial.md; part of the answer to OPEN."""

_COUNT = 16  # width of a word's sequence number in bits


def check_sizes(nodes, buffer_words, frame_words):
    """Raise ValueError unless the numbers of nodes, buffer words and frame words suit a link."""
    if not isinstance(nodes, int) or not 1 <= nodes <= SMALL_RING:
        raise ValueError(f"Node count must be between 1 and {SMALL_RING}, not {nodes!r}")
    if not isinstance(frame_words, int) or not 1 <= frame_words <= MAX_WORDS:
        raise ValueError(f"Frame must be between 1 and {MAX_WORDS} words, not {frame_words!r}")
    if (not isinstance(buffer_words, int) or buffer_words & buffer_words - 1
            or not 2 * frame_words <= buffer_words <= 1 << _COUNT - 2):
        raise ValueError(f"Buffer must be a power of two, of at least two frames and at most {1 << _COUNT - 2} "
                         f"words, not {buffer_words!r}")


class Endpoint(wiring.Component):
    """Buffer received words until the node takes them, and words to send until they are acknowledged.

    The words of each direction are numbered modulo 65,536, starting when the host opens the link. A frame is accepted
    if it begins with the next expected word and fits in the buffer, so a repeated frame has no effect and a request
    is executed only once. Sent words stay in the buffer until the host acknowledges them. At the host's request,
    they are sent again from the first unacknowledged word on; the endpoint itself has no timer. docs/serial.md
    describes the whole protocol.

    The node's side needs about four cycles per word, which does not reduce throughput as long as a word on the wire
    takes at least 16 cycles.

    Parameters
    ----------
    number : int
        Number of the node, 0 to 15.
    nodes : int
        Number of nodes on the link, which is reported in the reply to OPEN.
    buffer_words : int
        Number of words in each direction's buffer: a power of two, at least two frames.
    frame_words : int
        Maximum number of payload words in a sent frame, 1 to 127.

    Members
    -------
    header : In(header_layout())
        Header of the received frame, which may be for another node.
    started, write, good : In(1)
    word : In(32)
    index : In(7)
        Outputs of :class:`~hdl.serial.frame.FrameReceiver`.
    wanted : Out(1)
        A frame is waiting to be sent.
    o_header : Out(header_layout())
        Header of the frame to be sent; it may change until it is taken.
    taken : In(1)
        The header is taken in this cycle.
    o_payload : Out(stream of 32)
        Payload words of the frame.
    to_node : Out(stream of word_layout())
        Request packets.
    from_node : In(stream of word_layout())
        Response packets, one for each request.
    repeated : Out(1)
        A repeated frame has been received.
    gap : Out(1)
        A frame has been received, but not the one before it.
    busy : Out(1)
        The node has a request or is about to receive one, or a frame is waiting to be sent.
    """

    def __init__(self, *, number, nodes=1, buffer_words=512, frame_words=64):
        check_sizes(nodes, buffer_words, frame_words)
        if not isinstance(number, int) or not 0 <= number < nodes:
            raise ValueError(f"Node must be between 0 and {nodes - 1}, not {number!r}")
        self._number = number
        self._nodes = nodes
        self._buffer_words = buffer_words
        self._frame_words = frame_words
        super().__init__({
            "header": In(header_layout()),
            "started": In(1),
            "write": In(1),
            "good": In(1),
            "word": In(32),
            "index": In(7),
            "wanted": Out(1),
            "o_header": Out(header_layout()),
            "taken": In(1),
            "o_payload": Out(stream.Signature(32)),
            "to_node": Out(stream.Signature(word_layout())),
            "from_node": In(stream.Signature(word_layout())),
            "repeated": Out(1),
            "gap": Out(1),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        count = _COUNT
        words = self._buffer_words
        address = words.bit_length() - 1

        # Sequence numbers of words from the host: of the next word to arrive, and of the next word to pass to the
        # node.
        expected = Signal(count)
        consumed = Signal(count)
        # Sequence numbers of words from the node: of the next word to arrive, to be acknowledged, and to be sent.
        written = Signal(count)
        acknowledged = Signal(count)
        position = Signal(count)

        nonce = Signal(16)
        opening = Signal()  # no frame is accepted while the node is being prepared for its next request
        opened = Signal()  # an OPEN frame must be answered
        acknowledge = Signal()
        missing = Signal()  # a frame is missing, but the host has not yet been notified
        reported = Signal()  # the gap has been reported, so later frames do not report it again
        back = Signal()
        quiet = Signal()

        # Decoded header of the received frame; complete long before the end of the frame.
        settled = Signal(3)  # `started`, delayed until the decoded header is stable
        addressed = Signal()
        accepting = Signal()
        stored = Signal(count)
        ahead = Signal(count)  # offset of the frame's first word from the expected one
        progress = Signal(count)
        valid_progress = Signal()
        has_words = Signal()
        unacknowledged = Signal(count)
        m.d.comb += [stored.eq(expected - consumed), unacknowledged.eq(written - acknowledged)]
        m.d.sync += [
            settled.eq(Cat(self.started, settled)),
            addressed.eq(self.header.node == self._number),
            ahead.eq(self.header.sequence - expected),
            progress.eq(self.header.acknowledged - acknowledged),
            valid_progress.eq(progress <= unacknowledged),
            has_words.eq(self.header.length != 0),
        ]
        # Decide only once per frame, since buffer space may become free while the frame arrives.
        with m.If(settled[-1]):
            m.d.sync += accepting.eq(addressed & has_words & (self.header.kind == FrameKind.DATA) & (ahead == 0)
                                     & (stored + self.header.length <= words))
        with m.If(opening):
            m.d.sync += accepting.eq(0)
        self._receive(m, address, accepting, expected, consumed, opening, quiet)

        # Send words from the node to the host.
        m.submodules.kept = kept = Memory(shape=word_layout(), depth=words, init=[], attrs={"no_rw_check": 1})
        keep = kept.write_port()
        fetch = kept.read_port()
        length = Signal(7)
        final = Signal()
        size = Signal(7)
        cursor = Signal(count)
        full = Signal()
        opens = Signal()  # the next frame is the reply to OPEN
        m.d.comb += [
            full.eq(unacknowledged[address]),
            self.from_node.ready.eq(opening | ~full),
            keep.addr.eq(written[:address]),
            keep.data.eq(self.from_node.payload),
            keep.en.eq(self.from_node.valid & self.from_node.ready),
            cursor.eq(position + length),
            fetch.addr.eq(cursor[:address]),
            fetch.en.eq(1),
            self.o_payload.payload.eq(fetch.data.data),
            self.o_header.kind.eq(Mux(opens, FrameKind.OPEN, FrameKind.DATA)),
            self.o_header.last.eq(final),
            self.o_header.again.eq(missing),
            self.o_header.node.eq(self._number),
            self.o_header.length.eq(length),
            self.o_header.reply.eq(1),
            self.o_header.sequence.eq(Mux(opens, nonce, position)),
            self.o_header.acknowledged.eq(Mux(opens, self._nodes | VERSION << 8, expected)),
            self.o_header.limit.eq(consumed + words),
        ]
        with m.If(keep.en):
            m.d.sync += written.eq(written + 1)

        advertised = Signal(count)
        stale = Signal(count)
        behind = Signal(count)
        m.d.comb += behind.eq(position - acknowledged)
        m.d.comb += stale.eq(consumed - advertised)
        with m.If(stale[address - 1:] != 0):
            m.d.sync += acknowledge.eq(1)

        with m.FSM() as machine:
            with m.State("Idle"):
                m.d.sync += [length.eq(0), final.eq(0), opens.eq(0)]
                with m.If(opening):
                    with m.If(quiet):
                        m.d.sync += [
                            number.eq(0) for number in (
                                expected, consumed, advertised, written, acknowledged, position, missing,
                                reported, back, acknowledge, opening)
                        ]
                        m.d.sync += opened.eq(1)
                with m.Elif(opened):
                    m.d.sync += opens.eq(1)
                    m.next = "Offer"
                with m.Elif(back | behind[-1]):
                    m.d.sync += [back.eq(0), position.eq(acknowledged)]
                with m.Elif(position != written):
                    m.next = "Measure"
                with m.Elif(acknowledge):
                    m.next = "Offer"

            # If the packet is short enough, the frame ends with it, so read ahead to find the packet's length.
            with m.State("Measure"):
                m.next = "Look"
            with m.State("Look"):
                m.d.sync += length.eq(length + 1)
                m.next = "More"
                with m.If(fetch.data.last | (length == self._frame_words - 1)):
                    m.d.sync += final.eq(fetch.data.last)
                    m.next = "Offer"
            with m.State("More"):
                with m.If(cursor != written):
                    m.next = "Look"  # the word is fetched in this cycle
                with m.Elif(opening | opened | back):
                    m.next = "Idle"
                with m.Elif(acknowledge):
                    m.d.sync += length.eq(0)
                    m.next = "Offer"

            with m.State("Offer"):
                m.d.comb += self.wanted.eq(1)
                with m.If(self.taken):
                    m.d.sync += [advertised.eq(consumed), acknowledge.eq(0), missing.eq(0), size.eq(length),
                                  length.eq(0)]
                    m.next = "Fetch"
                    with m.If(opens):
                        m.d.sync += opened.eq(0)
                    with m.If(length == 0):
                        m.next = "Idle"
            with m.State("Fetch"):
                m.next = "Send"
            with m.State("Send"):
                m.d.comb += self.o_payload.valid.eq(1)
                with m.If(self.o_payload.ready):
                    m.d.sync += length.eq(length + 1)
                    m.next = "Next"
            with m.State("Next"):
                m.next = "Send"
                with m.If(length == size):
                    m.d.sync += position.eq(cursor)
                    m.next = "Idle"

        # The end of a received frame takes precedence over flags just cleared by a sent frame.
        with m.If(self.good & addressed):
            with m.If(self.header.kind == FrameKind.OPEN):
                with m.If(self.header.again):
                    m.d.sync += opened.eq(1)
                with m.Else():
                    m.d.sync += [opening.eq(1), nonce.eq(self.header.sequence)]
            with m.Elif((self.header.kind == FrameKind.DATA) & ~opening):
                with m.If(valid_progress):
                    m.d.sync += acknowledged.eq(self.header.acknowledged)
                with m.If(self.header.again):
                    m.d.sync += [back.eq(1), acknowledge.eq(1)]
                with m.If(has_words):
                    m.d.sync += acknowledge.eq(1)
                with m.If(accepting):
                    m.d.sync += [expected.eq(expected + self.header.length), missing.eq(0), reported.eq(0)]
                with m.Elif(has_words & ahead[-1]):
                    m.d.comb += self.repeated.eq(1)
                with m.Elif(has_words):
                    m.d.comb += self.gap.eq(1)
                    with m.If(~reported):
                        m.d.sync += [missing.eq(1), reported.eq(1)]

        m.d.comb += self.busy.eq(~quiet | (expected != consumed) | ~machine.ongoing("Idle") | acknowledge | opened
                                 | opening)
        return m

    def _receive(self, m, address, accepting, expected, consumed, opening, quiet):
        """Store accepted words from the host and pass them on to the node."""
        m.submodules.stored = stored = Memory(
            shape=word_layout(), depth=self._buffer_words, init=[], attrs={"no_rw_check": 1})
        write = stored.write_port()
        read = stored.read_port()
        inside = Signal()  # the node has received part of a packet
        requests = Signal(4)  # number of unanswered requests
        idle = Signal()
        took = Signal()
        gave = Signal()
        m.d.comb += [
            write.addr.eq((expected + self.index)[:address]),
            write.data.data.eq(self.word),
            write.data.last.eq(self.header.last & (self.index == self.header.length - 1)),
            write.en.eq(self.write & accepting),
            read.addr.eq(consumed[:address]),
            read.en.eq(1),
            quiet.eq(idle & ~inside & (requests == 0)),
            took.eq(self.to_node.valid & self.to_node.ready & self.to_node.payload.last),
            gave.eq(self.from_node.valid & self.from_node.ready & self.from_node.payload.last),
        ]
        m.d.sync += requests.eq(requests + took - gave)
        with m.FSM():
            with m.State("Idle"):
                m.d.comb += idle.eq(1)
                with m.If(opening):
                    with m.If(inside):
                        # The rest of the packet will not arrive: end the packet here so that the node rejects it.
                        m.d.sync += [
                            self.to_node.valid.eq(1), self.to_node.payload.data.eq(0),
                            self.to_node.payload.last.eq(1),
                        ]
                        m.next = "Offer"
                with m.Elif(expected != consumed):
                    m.next = "Load"
            with m.State("Load"):
                m.d.sync += [self.to_node.valid.eq(1), self.to_node.payload.eq(read.data)]
                m.next = "Offer"
            with m.State("Offer"):
                with m.If(self.to_node.ready):
                    m.d.sync += [
                        self.to_node.valid.eq(0), consumed.eq(consumed + 1), inside.eq(~self.to_node.payload.last),
                    ]
                    m.next = "Idle"
