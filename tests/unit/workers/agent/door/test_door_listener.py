"""The listening socket of the door."""

import asyncio
import socket
from urllib.parse import urlsplit

from starlette.applications import Starlette

from workers.agent.door.listener import DoorListener


async def test_no_part_of_an_answer_waits_for_an_acknowledgement(monkeypatch):
    taken = asyncio.get_running_loop().create_future()
    accept = socket.socket.accept

    def noted(listening):
        connection, address = accept(listening)
        taken.set_result(connection)
        return connection, address

    async with DoorListener(Starlette()) as listener:
        monkeypatch.setattr(socket.socket, "accept", noted)
        place = urlsplit(listener.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"GET /v1/nothing HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"404" in await reader.readline()
        assert (await taken).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        await writer.wait_closed()
