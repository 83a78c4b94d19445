"""Ports for the exporters: assigned before an attempt starts, so that it can be listed as a target at once."""

from __future__ import annotations

import socket


class PortAllocator:
    """Free TCP ports of one address.

    A port is free when it is handed out; should another process take it before the exporter binds it, the
    exporter takes another one and says so in its ``exporter.json``.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self._taken: set[int] = set()

    def allocate(self) -> int:
        """A free port that this allocator has not handed out.

        Raises:
            OSError: the address has no free port, or is not an address of this machine.
        """
        rejected: list[socket.socket] = []
        try:
            while True:
                probe = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
                rejected.append(probe)
                probe.bind((self.host, 0))
                port = int(probe.getsockname()[1])
                if port not in self._taken:
                    self._taken.add(port)
                    return port
        finally:
            for probe in rejected:
                probe.close()

    def take(self, port: int) -> None:
        """Remember a port that an attempt of an earlier webhook uses."""
        self._taken.add(port)

    def release(self, port: int) -> None:
        """The attempt is gone."""
        self._taken.discard(port)
