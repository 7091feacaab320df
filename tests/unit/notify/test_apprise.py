"""Apprise delivers: by HTTP and by mail, to receivers of this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outlast.notify.channel import AppriseChannel


@asynccontextmanager
async def receiver(talk) -> AsyncIterator[int]:
    """Serve a conversation on a port of this machine."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("status", [200, 500])
async def test_a_message_is_posted(status: int) -> None:
    """The service gets title, text and the id of the notice, as text; what it does not take raises."""
    taken = []

    async def talk(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        taken.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    async with receiver(talk) as port:
        sending = AppriseChannel(f"json://127.0.0.1:{port}/").send(
            "A title", "| <b>*x*</b> {{y}}", "n1"
        )
        if status == 200:
            await sending
        else:
            with pytest.raises(ConnectionError):
                await sending
    assert taken[0]["title"] == "A title"
    assert taken[0]["message"] == "| <b>*x*</b> {{y}}\nnotice n1"


async def test_a_message_is_mailed() -> None:
    """As plain text with a subject."""
    lines: list[bytes] = []

    async def talk(reader, writer):
        async def say(text: bytes) -> None:
            writer.write(text + b"\r\n")
            await writer.drain()

        await say(b"220 double")
        while line := await reader.readline():
            word = line[:4].upper().strip()
            if word == b"DATA":
                await say(b"354 go on")
                while (line := await reader.readline()).strip() != b".":
                    lines.append(line)
            await say(b"221 bye" if word == b"QUIT" else b"250 ok")
            if word == b"QUIT":
                break
        writer.close()

    async with receiver(talk) as port:
        url = f"mailto://127.0.0.1:{port}?from=outlast@example.org&to=ann@example.org&mode=insecure&format=text"
        await AppriseChannel(url).send("A title", "hello <b>", "n1")
    mail = b"".join(lines)
    assert b"Subject: A title" in mail
    assert b"hello <b>" in mail or b"aGVsbG8gPGI+" in mail
