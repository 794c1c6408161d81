"""A peer that says what it is told to, whatever it is asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def saying(data: bytes) -> Iterator[str]:
    """The address of somebody who says just that to its first request, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def once() -> None:
            connection, _ = listener.accept()
            listener.close()  # aiohttp sends once more what may be sent twice
            with connection:
                connection.recv(65536)
                connection.sendall(data)

        thread = threading.Thread(target=once)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)
