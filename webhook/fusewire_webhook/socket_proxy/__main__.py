"""Serve.

Environment: ``ALLOWED_…`` (:class:`.creation.Allowed`), ``DOCKER_SOCKET`` (its path), ``LISTEN`` (``HOST:PORT``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys

from fusewire_webhook.errors import ConfigError
from fusewire_webhook.socket_proxy.creation import Allowed
from fusewire_webhook.socket_proxy.server import SocketProxy


async def serve() -> None:
    """Until SIGTERM or SIGINT.

    Raises:
        ConfigError: a variable is missing or wrong.
        OSError: the address cannot be listened on.
    """
    allowed = Allowed.of(os.environ)
    socket = os.environ.get("DOCKER_SOCKET", "/var/run/docker.sock")
    address = re.fullmatch(r"([^:]*):([0-9]+)", os.environ.get("LISTEN", "127.0.0.1:2375"))
    if address is None:
        raise ConfigError("LISTEN is not HOST:PORT")
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    proxy = SocketProxy(socket=socket, allowed=allowed)
    try:
        await proxy.listen(address[1] or None, int(address[2]))
        await stopped.wait()
    finally:
        await proxy.close()


def main() -> int:
    """Exit code 2: it cannot be started as it is configured."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s")
    try:
        asyncio.run(serve())
    except (ConfigError, OSError) as error:
        print(f"socket-proxy: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
