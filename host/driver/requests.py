"""Requests to one node, and its responses in their order."""

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from hdl.config import Configuration, Tenants
from hdl.control.protocol import RESPONSE, Opcode, Status, header_layout
from hdl.control.windows import PRIVILEGED
from host.driver.command import Command
from host.driver.errors import REFUSALS, DeviceError, DeviceTimeoutError, ProtocolError, TransportStatus
from host.driver.transport import Request, Transport
from host.driver.words import Words, fields, places

__all__ = ["TIMEOUT", "Requests"]

_HEADER = places(header_layout())

TIMEOUT = 1_000_000
"""Cycles that an answer may take beyond what was asked for."""


class Requests:
    """Requests to one node, in the order in which it serves them.

    Parameters
    ----------
    transport : Transport
        The way to the node.
    config : Configuration
        Configuration that the node was built with.
    name : str
        Name of the node in messages.
    timeout : int
        Cycles of the node's clock that an answer may take, in addition to the cycles of the request itself.
    tenant : int or None
        Who asks, in a node with tenants: the privileged host, 0, or one of them. None where the transport says so,
        as it does for a tenant's own driver.
    """

    def __init__(self, transport: Transport, config: Configuration, *, name: str = "node",
                 timeout: int = TIMEOUT, tenant: int | None = PRIVILEGED) -> None:
        if timeout < 1:
            raise ValueError(f"Timeout must be at least 1 cycle, not {timeout!r}")
        self._transport = transport
        self._config = config
        self._name = name
        self._timeout = timeout
        asks = config.has(Tenants) and tenant is not None
        self._asks = [np.array([tenant], np.uint32)] if asks else []
        self._privileged = not config.has(Tenants) or tenant == int(PRIVILEGED)
        self._tenant = tenant if asks and tenant else int(PRIVILEGED)
        self._outstanding: deque[Request] = deque()
        self._tag = 0

    @property
    def config(self) -> Configuration:
        return self._config

    @property
    def name(self) -> str:
        return self._name

    def room(self, name: str) -> int:
        """Words of a memory space that are there for who asks; 0 if there is no such space."""
        return int(self._config.memory_map[name].words) if name in self._config.memory_map else 0

    @property
    def privileged(self) -> bool:
        """Whether it may write privileged registers."""
        return self._privileged

    def named(self, command: Command) -> Command:
        """The command in the name of the tenant that asks, unless it names one itself."""
        return dataclasses.replace(command, tenant=self._tenant) if self._tenant and not command.tenant else command

    @property
    def transport(self) -> Transport:
        return self._transport

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def _submit(self, opcode: Opcode, asked: str, *, count: int, words: Sequence[Words], answer: int,
                patience: int = 0) -> Request:
        header = opcode << _HEADER["opcode"][0] | self._tag << _HEADER["tag"][0] | count << _HEADER["count"][0]
        request = Request(opcode, self._tag, asked, answer, self._timeout + patience)
        self._tag = (self._tag + 1) % 256
        self._transport.send(np.concatenate([*self._asks, np.array([header], np.uint32), *words]))
        self._outstanding.append(request)
        return request

    def complete(self, request: Request) -> None:
        """Take responses in their order, up to the response to this request."""
        while not request.done:
            first = self._outstanding[0]
            try:
                response = self._transport.receive(first.patience)
            except TimeoutError as error:
                raise DeviceTimeoutError(
                    f"{self._name}: no response to {first.asked} in {first.patience} cycles\n{error}") from error
            self._outstanding.popleft()
            self._settle(first, response)

    def _settle(self, request: Request, response: Words) -> None:
        """Check a response against its request, and settle the request."""
        def mismatch(what: str) -> ProtocolError:
            return ProtocolError(f"{self._name}: response to {request.asked} {what}; the transport has lost or "
                                 f"changed words, open it again")

        if response.size < 2:
            request.error = mismatch(f"must have at least 2 words, not {response.size}")
            return
        header = fields(_HEADER, int(response[0]))
        opcode, tag, count = header["opcode"], header["tag"], header["count"]
        payload = response[2:]
        if opcode != request.opcode | RESPONSE:
            request.error = mismatch(f"must have opcode 0x{request.opcode | RESPONSE:02x}, not 0x{opcode:02x}")
        elif tag != request.tag:
            request.error = mismatch(f"must have tag {request.tag}, not {tag}")
        elif count != payload.size:
            request.error = mismatch(f"must have the {count} payload words of its header, not {payload.size}")
        elif response[1] in REFUSALS:
            request.error = self._refusal(request, next(one for one in REFUSALS if one == response[1]), payload)
        elif response[1] == Status.EMPTY and opcode == Opcode.POP_EVENT | RESPONSE:
            request.payload = payload
        elif response[1] != Status.OK:
            request.error = mismatch(f"must have another status than {response[1]}")
        elif count != request.answer:
            request.error = mismatch(f"must have {request.answer} payload words, not {count}")
        else:
            request.payload = payload

    def _refusal(self, request: Request, status: Status | TransportStatus, payload: Words) -> DeviceError:
        kind, advice = REFUSALS[status]
        written = f" after {payload[0]} words were written" if payload.size else ""
        return kind(f"{self._name}: {request.asked} was refused with {status.name}{written}; {advice}")
