"""A bounded soak on loopback: many streams at once, some cancelled, some cut off, some invalid. Every answer that should
come, comes, and is the one that the same prompt gets alone; afterwards the server holds what it held before."""

import asyncio
import json
import math
import os
import random
import socket
import struct
import time

STREAMS = 64
REQUESTS = int(os.environ.get("ONELANE_SOAK_REQUESTS", "3000"))
CANCELLED, DISCONNECTED, INVALID = 0.20, 0.05, 0.02
SILENCE_SECONDS = 60  # a stream without a byte for so long is starved

PROMPTS = [
    "def read_lines(path):\n",
    "The function returns",
    "for f in *.txt; do",
    '{"name": "',
    "It was a",
    "#include <",
    "static int parse(const char *text) {\n",
    "# The code of a program is " * 12,
    "import os\nimport sys\n\n\ndef main():\n    " + "print(os.getcwd())\n    " * 40,
    "In the morning the " + "and the " * 150,
]
INVALID_BODIES = [
    b"{",
    b'{"model": "no-such-model", "prompt": "x"}',
    b'{"prompt": "x", "max_tokens": "many"}',
    b'{"prompt": "x", "temperature": -1}',
    b'{"prompt": {"a": 1}}',
]


class Connection:
    """One HTTP/1.1 request on a socket of its own, read as it arrives."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    async def post(self, path, body):
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()
        status = await asyncio.wait_for(self.reader.readline(), SILENCE_SECONDS)
        self.headers = {}
        while line := (await self.reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        return int(status.split()[1])

    async def body(self):
        if "content-length" in self.headers:
            return await self.reader.readexactly(int(self.headers["content-length"]))
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self):
        while size := int(await asyncio.wait_for(self.reader.readline(), SILENCE_SECONDS), 16):
            piece = await self.reader.readexactly(size)
            await self.reader.readexactly(2)
            yield piece
        await self.reader.readline()

    def close(self):
        self.writer.close()

    def reset(self):
        """The way a crashed client goes: RST instead of FIN."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def request_body(index):
    prompt = PROMPTS[index % len(PROMPTS)]
    sampled = index % 3 == 0
    return json.dumps({
        "prompt": prompt,
        "max_tokens": 4 + index % 5 * 4,
        "temperature": 0.8 if sampled else 0,
        "seed": index % 7,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }).encode()


async def read_stream(connection, most_events=None):
    """Text and usage of a completion stream; None for a stream that was left early."""
    text, usage, done, pending, events = "", None, False, b"", 0
    async for piece in connection.chunks():
        pending += piece
        while b"\n\n" in pending:
            event, pending = pending.split(b"\n\n", 1)
            if event.startswith(b":"):
                continue
            assert event.startswith(b"data: "), event
            if event == b"data: [DONE]":
                done = True
                continue
            data = json.loads(event[6:])
            assert "error" not in data, data
            usage = data.get("usage") or usage
            text += "".join(choice["text"] for choice in data["choices"])
            events += 1
            if most_events and events >= most_events:
                return None
    assert done and usage, "a stream ends with its usage and [DONE]"
    return text, usage["completion_tokens"]


def process_state(pid):
    with open(f"/proc/{pid}/statm") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(f"/proc/{pid}/fd"))


async def soak(host, port, requests):
    kinds = random.Random(5)
    expected, counts = {}, {"answered": 0, "cancelled": 0, "disconnected": 0, "invalid": 0}

    async def whole(index):
        connection = Connection(host, port)
        status = await connection.post("/v1/completions", request_body(index))
        assert status == 200, (status, await connection.body())
        answer = await read_stream(connection)
        connection.close()
        return answer

    # What every request gets when it is alone; bodies repeat with the period of their parts.
    period = math.lcm(len(PROMPTS), 3, 5, 7)
    wanted = sorted({kinds.randrange(period) for _ in range(40)})
    for index in wanted:
        expected[index] = await whole(index)

    queue = asyncio.Queue()
    for _ in range(requests):
        queue.put_nowait((kinds.random(), kinds.choice(wanted)))

    async def worker():
        while not queue.empty():
            chance, index = queue.get_nowait()
            if chance < INVALID:
                connection = Connection(host, port)
                status = await connection.post("/v1/completions", INVALID_BODIES[index % len(INVALID_BODIES)])
                error = json.loads(await connection.body())["error"]
                assert status in (400, 404) and error["message"], (status, error)
                connection.close()
                counts["invalid"] += 1
            elif chance < INVALID + CANCELLED + DISCONNECTED:
                connection = Connection(host, port)
                assert await connection.post("/v1/completions", request_body(index)) == 200
                await read_stream(connection, most_events=1 + index % 3)
                cancelled = chance < INVALID + CANCELLED
                connection.close() if cancelled else connection.reset()
                counts["cancelled" if cancelled else "disconnected"] += 1
            else:
                assert await whole(index) == expected[index], f"request {index} answers otherwise in company"
                counts["answered"] += 1

    await asyncio.gather(*(worker() for _ in range(STREAMS)))
    return counts


def test_soak(server):
    asyncio.run(soak(server.host, server.port, 200))  # warm: allocations that happen once
    server.wait_idle()
    resident, files = process_state(server.pid)
    start = time.monotonic()
    counts = asyncio.run(soak(server.host, server.port, REQUESTS))
    seconds = time.monotonic() - start
    server.wait_idle()
    resident_after, files_after = process_state(server.pid)
    print(f"{counts} in {seconds:.0f} s, RSS {resident >> 20} -> {resident_after >> 20} MiB, files {files} -> {files_after}")
    assert sum(counts.values()) == REQUESTS
    assert files_after <= files
    assert resident_after - resident < 48 << 20
    assert server.total("onelane_pages_used") == 0
