"""The committed configuration of Alertmanager, on this machine: addresses and secrets replaced, waits cut."""

from __future__ import annotations

import asyncio
import copy
import email
import email.policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "compose" / "alertmanager"
TEMPLATES = FOLDER / "templates"


def committed() -> dict[str, Any]:
    """The configuration as it is committed."""
    return yaml.safe_load((FOLDER / "alertmanager.yml").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def local(folder: Path, *, webhook: str, smtp: str) -> Path:
    """Write a copy that posts trips to ``webhook`` and mails through ``smtp`` (``host:port``), soon."""
    token = folder / "token"
    token.write_text("secret")
    config = copy.deepcopy(committed())
    config["global"] = {"smtp_smarthost": smtp, "smtp_from": "fusewire@example.org", "smtp_require_tls": False}
    config["templates"] = [str(TEMPLATES / "*.tmpl")]
    for route in (config["route"], *config["route"]["routes"]):
        if route["receiver"].startswith("people"):
            route["group_wait"] = "1s"
    for receiver in config["receivers"]:
        hooks = receiver.get("webhook_configs", [])
        if receiver["name"].startswith("people"):
            hooks.clear()  # the pager is somebody else's
        for hook in hooks:
            hook["url"] = webhook
            hook["http_config"]["authorization"]["credentials_file"] = str(token)
        if not hooks:
            receiver.pop("webhook_configs", None)
    path = folder / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


class Mailbox:
    """A mail server that keeps what it gets. Use it as an async context manager."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.came = asyncio.Event()
        """Set whenever a mail has come."""
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """``host:port``."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Mailbox:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def subjects(self) -> list[str]:
        """Subjects so far, in order."""
        return [str(mail["Subject"]) for mail in self.mails]

    def body(self, kind: str) -> str:
        """The ``plain`` or ``html`` part of the last mail."""
        part = self.mails[-1].get_body((kind,))
        assert part is not None
        return str(part.get_content())

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mailbox\r\n")
        while line := await reader.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                data = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append(email.message_from_bytes(data[:-3], policy=email.policy.default))  # type: ignore[arg-type]
            self.came.set()
            writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")
            if word == b"QUIT":
                break
        writer.close()
