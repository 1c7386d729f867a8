"""Ranks without PyTorch: clients of a server, each in its own thread."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from host.pytorch.client import RingClient
from host.pytorch.server import Patience, RingServer

__all__ = ["Ranks", "serving"]

TIMEOUT = 60


class Ranks:
    """Clients of a server, with a thread pool that makes their requests.

    Members
    -------
    clients : list of RingClient
    said : list of str
        Lines printed by the server.
    """

    def __init__(self, server, clients, pool, said):
        self.server, self.clients, self.pool, self.said = server, clients, pool, said

    def ask(self, *requests):
        """Make one request per rank, all at the same time; return their results or errors."""
        futures = [self.pool.submit(client.ask, request)
                   for client, request in zip(self.clients, requests, strict=True) if request is not None]
        return [future.exception(TIMEOUT) or future.result() for future in futures]


@contextlib.contextmanager
def serving(folder, jobs, *, ranks, patience=None, join=True):
    """Run a server in a separate thread, and stop it at the end."""
    said = []
    patience = patience or Patience(slow=20, timeout=40)
    server = RingServer(folder / "ring", ranks=ranks, jobs=jobs, patience=patience, say=said.append)
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            server.poll(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    pool = ThreadPoolExecutor(ranks)
    clients = [RingClient(str(folder / "ring")) for _ in range(ranks)]
    try:
        if join:
            for rank, client in enumerate(clients):
                client.join(rank, ranks, 1800)
        yield Ranks(server, clients, pool, said)
    finally:
        ended.set()
        thread.join()
        server.close()  # pending requests end
        pool.shutdown()
        for client in clients:
            client.close()
