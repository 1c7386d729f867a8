"""Transports to all nodes of a ring with slots, using messages through node 0's host port.

Requests to other ranks are split into pieces of at most 64 words, which are sent as messages, and the answers are
joined. Unanswered messages are repeated. docs/ring/slots.md specifies the words and the rules.

Example
-------
::

    hub = MessageHub(transport, nodes=8)
    devices = [Device(one, config, name=f"node {rank}") for rank, one in enumerate(hub.transports)]
    devices[0].write_register("SLOT_POSITION", place_of(8))
"""

import dataclasses
from collections import deque
from collections.abc import Iterator

import numpy as np

from hdl.control.protocol import RESPONSE, Opcode, Status, header_layout
from hdl.features.slots.layouts import MESSAGE_OPCODE, MESSAGE_TYPE, MESSAGE_WORDS, message_header_layout
from host.driver.errors import TransportStatus
from host.driver.transport import NodeTransport, Transport
from host.driver.words import Words, fields, pack, places

__all__ = ["MAX_NODES", "PATIENCE", "SLICE", "WINDOW", "MessageHub", "place_of"]

_MESSAGE, _HEADER = places(message_header_layout()), places(header_layout())
WINDOW = 4  # maximum number of unanswered messages to all nodes, which is the number that each gate stores
MAX_NODES = 15  # maximum ring size with ranks that fit in the fields of a message
#: Number of cycles without any packet, or of packets from other nodes, after which a message is repeated.
PATIENCE, OTHERS = 8192, 32
SLICE = 4096  # cycles that a node waits for an event in one request; longer waits are split into several requests
#: Number of register or memory words in a message, in addition to header and address, or header and status.
_PART = MESSAGE_WORDS - 2
_READS = (Opcode.READ_REGISTER, Opcode.READ_MEMORY)
_WRITES = (Opcode.WRITE_REGISTER, Opcode.WRITE_MEMORY)


def place_of(nodes: int) -> int:
    """Value of rank 0's register SLOT_POSITION that assigns positions to all nodes of a ring."""
    return nodes << 4


@dataclasses.dataclass(eq=False)
class _Piece:
    """Piece of a request, sent under its own tag: its ``words`` without the tag, and the answer so far."""

    words: Words
    tag: int | None = None  # tag of the piece's messages; None until one is sent
    waiting: deque[Words] = dataclasses.field(default_factory=deque)  # messages that are still to be sent
    sent: Words | None = None  # the last message sent, while it is unanswered
    others: int = 0  # number of packets from other nodes since the last message
    answer: list[Words] = dataclasses.field(default_factory=list)
    response: Words | None = None

    @property
    def long(self) -> bool:
        """Whether the piece needs several messages; if one is lost, the piece restarts with a new tag."""
        return bool(self.words.size > MESSAGE_WORDS)


@dataclasses.dataclass
class _Conversation:
    """Queue of requests to a node, and the pieces of the request that is being sent."""

    requests: deque[Words] = dataclasses.field(default_factory=deque)
    responses: deque[Words] = dataclasses.field(default_factory=deque)
    pieces: list[_Piece] = dataclasses.field(default_factory=list)
    left: int = 0  # cycles that are left to wait for an event after this piece
    tag: int = 0

    @property
    def on_the_way(self) -> list[_Piece]:
        return [piece for piece in self.pieces if piece.sent is not None]


def _header(packet: Words) -> dict[str, int]:
    """Return the header fields of a request or response."""
    return fields(_HEADER, int(packet[0]))


def _with(packet: Words, **changes: int) -> Words:
    """Return a copy of a request or response with changed header fields, such as the tag or count."""
    return np.concatenate([pack(_HEADER, _header(packet) | changes, "Header's"), packet[1:]]).astype(np.uint32)


def _cut(request: Words) -> list[Words]:
    """Split a register or memory request into requests of at most 62 words each."""
    header = _header(request)
    count, writes = header["count"], header["opcode"] in _WRITES
    if not (writes or header["opcode"] in _READS) or count <= _PART or request.size != 2 + writes * count:
        return [request]
    return [np.concatenate([_with(request[:1], count=min(_PART, count - start)),
                            (request[1:2] + np.uint32(start)).astype(np.uint32),
                            request[2 + start:2 + start + _PART]]) for start in range(0, count, _PART)]


def _joined(request: Words, responses: list[Words]) -> Words:
    """Join the responses to a split request: the first error status or, if there is none, all words."""
    header = _header(request)
    refusal = next((number for number, response in enumerate(responses) if response[1] != Status.OK), None)
    status = np.uint32(Status.OK) if refusal is None else responses[refusal][1]
    payload = [response[2:] for response in responses]
    if header["opcode"] in _WRITES:
        done = payload if refusal is None else payload[:refusal + 1]
        payload = [np.array([sum(int(words.sum()) for words in done)], np.uint32)]
    elif refusal is not None:
        payload = []
    words = np.concatenate([np.array([responses[0][0], status], np.uint32), *payload])
    return _with(words, tag=header["tag"], count=words.size - 2)


class MessageHub:
    """Transports to all nodes of a ring through rank 0.

    Requests to rank 0 itself pass unchanged. A node receives a request only after it has answered the previous one;
    only pieces that can safely be repeated are sent together. An unanswered piece of one message is repeated
    unchanged: a node does not execute a command, event, run or edit again if it repeats the tag of the previous
    request. A piece of several messages restarts with a new tag and writes the same words again. ``transport`` is
    connected to rank 0 of 2 to 15 ``nodes``.
    """

    def __init__(self, transport: Transport, *, nodes: int) -> None:
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 2 <= nodes <= MAX_NODES:
            raise ValueError(f"Node count must be between 2 and {MAX_NODES}, not {nodes!r}")
        self._transport = transport
        self._conversations = [_Conversation() for _ in range(nodes)]
        self._turn = 0
        self.repeated = 0  # number of messages that were sent again
        self.transports = tuple(NodeTransport(self, rank) for rank in range(nodes))  # one transport per rank

    def send(self, node: int, packet: Words) -> None:
        """Queue one request packet to a node."""
        if packet.ndim != 1 or not packet.size:
            raise ValueError(f"Packet must be one sequence of at least one word, not of shape {packet.shape!r}")
        if not node:
            self._transport.send(packet)
            return
        conversation = self._conversations[node]
        conversation.requests.append(packet)
        if len(conversation.requests) == 1:
            self._begin(node)

    def receive(self, node: int, timeout_cycles: int) -> Words:
        """Receive the next response packet of a node.

        If no packet arrives from any node for ``timeout_cycles`` cycles, the node's request times out: its response
        has the status :attr:`~host.driver.errors.TransportStatus.NO_ANSWER`, and a later answer is discarded. Raises
        ``TimeoutError`` if rank 0 itself has not answered.
        """
        conversation, waited = self._conversations[node], 0
        while not conversation.responses:
            cycles = max(min(PATIENCE, timeout_cycles - waited), 1)
            try:
                packet = self._transport.receive(cycles)
            except TimeoutError:
                waited += cycles
                if waited < timeout_cycles:
                    self._repeat(0)
                elif not conversation.requests:
                    raise
                else:
                    request = conversation.requests[0]
                    header = _with(request[:1], count=0, opcode=_header(request)["opcode"] | RESPONSE)
                    self._respond(node, np.array([*header, TransportStatus.NO_ANSWER], np.uint32))
            else:
                waited = 0
                self._take(packet)
                self._repeat(OTHERS)
        return conversation.responses.popleft()

    def close(self) -> None:
        """Close the transport to rank 0."""
        self._transport.close()

    def _begin(self, rank: int) -> None:
        """Split the first request to a node into pieces and start sending them."""
        conversation = self._conversations[rank]
        request = conversation.requests[0]
        conversation.left = 0
        if _header(request)["opcode"] == Opcode.POP_EVENT and request.size == 2:
            conversation.left = max(int(request[1]) - SLICE, 0)
            request = np.array([request[0], min(int(request[1]), SLICE)], np.uint32)
        conversation.pieces = [_Piece(words) for words in _cut(request)]
        for piece in conversation.pieces:
            self._make(rank, piece)
        self._advance()

    def _make(self, rank: int, piece: _Piece) -> None:
        """Build the messages of a piece with a tag that the node has not received recently."""
        conversation = self._conversations[rank]
        conversation.tag = (conversation.tag + 1) % 256
        piece.tag, piece.sent, piece.others = conversation.tag, None, 0
        piece.waiting.clear()
        piece.answer.clear()
        request = _with(piece.words, tag=piece.tag)
        for number, start in enumerate(range(0, request.size, MESSAGE_WORDS)):
            payload = request[start:start + MESSAGE_WORDS]
            piece.waiting.append(self._message(rank, payload, number=number % 8, begin=number == 0,
                                               end=start + payload.size == request.size))

    @staticmethod
    def _message(rank: int, payload: Words, **values: int) -> Words:
        header = pack(_MESSAGE, {"type": MESSAGE_TYPE, "destination": rank, "count": payload.size,
                                 "opcode": MESSAGE_OPCODE, **values}, "Message's")
        return np.concatenate([header, payload]).astype(np.uint32)

    def _ready(self) -> Iterator[_Piece]:
        """Yield the pieces that can be sent next, rotating among the nodes."""
        for _ in self._conversations:
            self._turn = (self._turn + 1) % len(self._conversations)
            pieces = self._conversations[self._turn].pieces
            # A piece that takes several messages is sent alone, since another request would end it early.
            for piece in pieces:
                if piece.waiting and piece.sent is None:
                    yield piece
                if piece.response is None and piece.long:
                    break

    def _advance(self) -> None:
        """Send messages to the nodes in rotation as long as their answers can be buffered."""
        free = WINDOW - sum(len(conversation.on_the_way) for conversation in self._conversations)
        while free > 0 and (piece := next(self._ready(), None)) is not None:
            piece.sent, piece.others = piece.waiting.popleft(), 0
            self._transport.send(piece.sent)
            free -= 1

    def _repeat(self, limit: int) -> None:
        """Repeat messages that are still unanswered after ``limit`` packets from other nodes."""
        for rank, conversation in enumerate(self._conversations):
            for piece in conversation.on_the_way:
                if piece.others < limit:
                    continue
                self.repeated += 1
                piece.others = 0
                if piece.long or piece.answer:
                    self._make(rank, piece)
                elif piece.sent is not None:
                    self._transport.send(piece.sent)
        self._advance()

    def _respond(self, rank: int, response: Words) -> None:
        """Respond to a node's first request and continue with its next one."""
        conversation = self._conversations[rank]
        conversation.responses.append(response)
        conversation.requests.popleft()
        conversation.pieces = []
        if conversation.requests:
            self._begin(rank)
        self._advance()

    def _take(self, packet: Words) -> None:
        """Process a packet from rank 0's host port: either its own response, or a message and its check word."""
        header = fields(_MESSAGE, int(packet[0]))
        for conversation in self._conversations:
            for waiting in conversation.on_the_way:
                waiting.others += 1
        if header["opcode"] != MESSAGE_OPCODE | RESPONSE:
            self._conversations[0].responses.append(packet)
            return
        rank, payload = header["source"], packet[1:-1]
        if not 0 < rank < len(self._conversations):
            return
        piece = self._piece(self._conversations[rank], header["begin"], payload)
        if piece is None:
            return  # the request has timed out or was repeated
        piece.sent = None
        if payload.size:
            piece.answer.append(payload)
            answer = np.concatenate(piece.answer)
            if answer.size >= _header(answer)["count"] + 2 or payload.size < MESSAGE_WORDS:
                piece.response = answer
                self._end(rank)
                return
            piece.waiting.append(self._message(rank, payload[:0]))
        self._advance()

    @staticmethod
    def _piece(conversation: _Conversation, begin: int, payload: Words) -> _Piece | None:
        """Find the piece that a message answers: the one with its tag, or one with a partial answer."""
        for piece in conversation.on_the_way:
            if not payload.size:
                if piece.long and piece.waiting and not piece.answer:
                    return piece
            elif not begin:
                if piece.answer:
                    return piece
            elif not piece.answer and not piece.waiting:
                asked = _header(piece.words)
                expected = asked | {"tag": piece.tag, "opcode": asked["opcode"] | RESPONSE, "count": 0}
                if _header(payload) | {"count": 0} == expected:
                    return piece
        return None

    def _end(self, rank: int) -> None:
        """Continue with the remaining pieces of a request, or respond if all have been answered."""
        conversation = self._conversations[rank]
        request, pieces = conversation.requests[0], conversation.pieces
        answers = [piece.response for piece in pieces if piece.response is not None]
        if len(answers) < len(pieces):
            self._advance()
        elif len(pieces) > 1:
            self._respond(rank, _joined(request, answers))
        elif conversation.left and int(answers[0][1]) == Status.EMPTY:
            wait = min(conversation.left, SLICE)
            conversation.left -= wait
            conversation.pieces = [_Piece(np.array([request[0], wait], np.uint32))]
            self._make(rank, conversation.pieces[0])
            self._advance()
        else:
            self._respond(rank, _with(answers[0], tag=_header(request)["tag"]))
