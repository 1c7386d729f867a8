"""Transports to all nodes of a ring with slots through the host port of node 0, by messages.

Requests of other ranks are cut into messages of at most 64 words, and answers are put together from them;
docs/ring/messages.md has their words and rules.

Example
-------
::

    hub = MessageHub(transport, nodes=8)
    devices = [Device(one, config, name=f"node {rank}") for rank, one in enumerate(hub.transports)]
"""

import dataclasses
from collections import deque

import numpy as np

from hdl.control.protocol import RESPONSE, header_layout
from hdl.ring.slots.layouts import MESSAGE_OPCODE, MESSAGE_TYPE, MESSAGE_WORDS, message_header_layout
from host.driver.errors import TransportStatus
from host.driver.transport import Transport
from host.driver.words import Words, fields, pack, places

__all__ = ["MOST_NODES", "WINDOW", "MessageHub", "MessageTransport"]

_MESSAGE, _HEADER = places(message_header_layout()), places(header_layout())
#: Messages that have no answer yet, of all nodes together: as many as each gate keeps.
WINDOW = 4
#: Nodes of a ring whose ranks a message can name.
MOST_NODES = 15


@dataclasses.dataclass
class _Conversation:
    """Requests to a node and what has come of the answer to the first: each message has one back."""

    requests: deque[Words] = dataclasses.field(default_factory=deque)
    responses: deque[Words] = dataclasses.field(default_factory=deque)
    waiting: deque[Words] = dataclasses.field(default_factory=deque)  # messages
    answer: list[Words] = dataclasses.field(default_factory=list)
    unanswered: int = 0

    @property
    def response_header(self) -> dict[str, int]:
        """Header of the response to the first request, as far as it is known."""
        asked = fields(_HEADER, int(self.requests[0][0]))
        return {"count": 0, "tag": asked["tag"], "opcode": asked["opcode"] | RESPONSE}


class MessageHub:
    """The ways to all nodes of a ring through one of them, of rank 0.

    Requests to rank 0 itself go as they are. A node is given a request when it has answered the one before.

    Parameters
    ----------
    transport : Transport
        The way to rank 0.
    nodes : int
        Ring size; 2 to 15.

    Members
    -------
    transports : tuple of MessageTransport
        One per rank.
    """

    def __init__(self, transport: Transport, *, nodes: int) -> None:
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 2 <= nodes <= MOST_NODES:
            raise ValueError(f"Node count must be between 2 and {MOST_NODES}, not {nodes!r}")
        self._transport = transport
        self._conversations = [_Conversation() for _ in range(nodes)]
        self._turn = 0
        self.transports = tuple(MessageTransport(self, rank) for rank in range(nodes))

    def send(self, rank: int, packet: Words) -> None:
        """Queue one request packet for a node."""
        if packet.ndim != 1 or not packet.size:
            raise ValueError(f"Packet must be one sequence of at least one word, not of shape {packet.shape!r}")
        if not rank:
            self._transport.send(packet)
            return
        conversation = self._conversations[rank]
        conversation.requests.append(packet)
        if len(conversation.requests) == 1:
            self._begin(rank)

    def receive(self, rank: int, timeout_cycles: int) -> Words:
        """Take the next response packet of a node.

        If nothing comes from any node for so many cycles, the node's request is given up: the response to it has the
        status :attr:`~host.driver.errors.TransportStatus.NO_ANSWER`, and a later answer to it is dropped.

        Raises
        ------
        TimeoutError
            Rank 0 itself has not answered.
        """
        conversation = self._conversations[rank]
        while not conversation.responses:
            try:
                packet = self._transport.receive(timeout_cycles)
            except TimeoutError:
                if not conversation.requests:
                    raise
                header = pack(_HEADER, conversation.response_header, "Response's")
                self._respond(rank, np.array([*header, TransportStatus.NO_ANSWER], np.uint32))
            else:
                self._take(packet)
        return conversation.responses.popleft()

    def close(self) -> None:
        """Close the way to rank 0."""
        self._transport.close()

    def _begin(self, rank: int) -> None:
        """Cut the first request into messages."""
        conversation = self._conversations[rank]
        request = conversation.requests[0]
        for number, start in enumerate(range(0, request.size, MESSAGE_WORDS)):
            payload = request[start:start + MESSAGE_WORDS]
            self._queue(rank, payload, number=number % 8, begin=number == 0, end=start + payload.size == request.size)
        self._advance()

    def _queue(self, rank: int, payload: Words, **values: int) -> None:
        header = pack(_MESSAGE, {"type": MESSAGE_TYPE, "destination": rank, "count": payload.size,
                                 "opcode": MESSAGE_OPCODE, **values}, "Message's")
        self._conversations[rank].waiting.append(np.concatenate([header, payload]).astype(np.uint32))

    def _advance(self) -> None:
        """Send messages while there is room for what comes back, to one node after the other."""
        free = WINDOW - sum(one.unanswered for one in self._conversations)
        while free > 0 and any(one.waiting for one in self._conversations):
            self._turn = (self._turn + 1) % len(self._conversations)
            conversation = self._conversations[self._turn]
            if conversation.waiting:
                self._transport.send(conversation.waiting.popleft())
                conversation.unanswered += 1
                free -= 1

    def _respond(self, rank: int, response: Words) -> None:
        """Give the response to the first request, and go on with the next."""
        conversation = self._conversations[rank]
        conversation.responses.append(response)
        conversation.requests.popleft()
        conversation.waiting.clear()
        conversation.answer.clear()
        conversation.unanswered = 0
        if conversation.requests:
            self._begin(rank)
        self._advance()

    def _take(self, packet: Words) -> None:
        """A packet of rank 0's host port: its own, or a message, with header and check."""
        header = fields(_MESSAGE, int(packet[0]))
        if header["opcode"] != MESSAGE_OPCODE | RESPONSE:
            self._conversations[0].responses.append(packet)
            return
        rank, payload = header["source"], packet[1:-1]
        if not 0 < rank < len(self._conversations):
            return
        conversation = self._conversations[rank]
        if not conversation.requests or not self._fits(conversation, header["begin"], payload):
            return  # it is of a request that was given up
        conversation.unanswered = max(conversation.unanswered - 1, 0)
        if payload.size:
            conversation.answer.append(payload)
            answer = np.concatenate(conversation.answer)
            if answer.size >= fields(_HEADER, int(answer[0]))["count"] + 2 or payload.size < MESSAGE_WORDS:
                self._respond(rank, answer)
                return
            self._queue(rank, payload[:0])
        self._advance()

    @staticmethod
    def _fits(conversation: _Conversation, begin: int, payload: Words) -> bool:
        """Whether a message is the next that the first request has coming."""
        if not payload.size:
            return bool(conversation.waiting or conversation.unanswered) and not conversation.answer
        if not begin or conversation.answer:
            return bool(conversation.answer) and not begin
        return {**fields(_HEADER, int(payload[0])), "count": 0} == conversation.response_header


class MessageTransport:
    """The way to one node through a :class:`MessageHub`."""

    def __init__(self, hub: MessageHub, rank: int) -> None:
        self._hub = hub
        self._rank = rank

    def send(self, packet: Words) -> None:
        """Queue one request packet."""
        self._hub.send(self._rank, packet)

    def receive(self, timeout_cycles: int) -> Words:
        """Take the next response packet: see :meth:`MessageHub.receive`."""
        return self._hub.receive(self._rank, timeout_cycles)

    def close(self) -> None:
        """Do nothing: the hub is closed on its own."""
