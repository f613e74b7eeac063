"""A server that speaks OpenAI's API badly, for the tests of `ridge load`: the first part of the path says how.

It needs no model: an answer of n tokens is n pieces "t0 ", "t1 ", ... All that is asked is in `bodies`, in order of arrival.
"""
import asyncio
import json
import threading

USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
TIMING = {"first": 0.08, "gap": 0.02}  # of /timed; seconds


def events(body, chat, usage=True, done=True):
    """The payloads of a streamed answer, [DONE] included."""
    n = body["max_tokens"]
    out = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}] if chat else []
    for i in range(n):
        text = f"t{i} "
        out.append({"choices": [{"index": 0, **({"delta": {"content": text}} if chat else {"text": text}),
                                 "finish_reason": "length" if i == n - 1 else None}]})
    if usage:
        out.append({"choices": [], "usage": {**USAGE, "completion_tokens": n}})
    return [json.dumps(e) for e in out] + ["[DONE]"] * done


class Fake:
    def __init__(self):
        self.bodies, self.heads, self.n_connections = [], [], 0
        self.lock = asyncio.Lock()
        self.loop, self.port = None, None

    # ---- HTTP ----

    async def serve(self, reader, writer):
        self.n_connections += 1
        try:
            while await self.one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split("\r\n")[0].split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head.split("\r\n")[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        how = path.split("/")[1]
        if method == "GET":
            return await self.models(writer, how, path)
        body = json.loads(body)
        self.bodies.append(body)
        self.heads.append(headers)
        chat = path.endswith("/chat/completions")
        return await getattr(self, how)(writer, body, chat, headers)

    async def plain(self, writer, status, body, kind="application/json", more=""):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode()
                     + data)
        await writer.drain()
        return True

    async def models(self, writer, how, path):
        if how == "nomodels" or not path.endswith("/v1/models"):
            return await self.plain(writer, 404, {"error": {"message": "no such path"}})
        if how == "empty":
            return await self.plain(writer, 200, {"object": "list", "data": []})
        name = "\x1b[31mfake\n" if how == "coloured" else "fake"
        return await self.plain(writer, 200, {"object": "list", "data": [{"id": name}]})

    async def head(self, writer, more=""):
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{more}\r\n"
                     .encode())

    async def chunk(self, writer, data):
        writer.write(b"%x\r\n" % len(data) + data + b"\r\n")
        await writer.drain()

    async def stream(self, writer, payloads, form="data: {}\n\n", first=0.0, gap=0.0):
        await asyncio.sleep(first)
        await self.head(writer)
        for i, payload in enumerate(payloads):
            if i > 0 and gap > 0:
                await asyncio.sleep(gap)
            await self.chunk(writer, form.format(payload).encode())
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    # ---- how ----

    async def good(self, writer, body, chat, headers):
        return await self.stream(writer, events(body, chat))

    async def timed(self, writer, body, chat, headers):
        return await self.stream(writer, events(body, chat, usage=False), **TIMING)

    async def one_by_one(self, writer, body, chat, headers):
        async with self.lock:
            return await self.stream(writer, events(body, chat), first=0.1)

    async def crlf(self, writer, body, chat, headers):
        return await self.stream(writer, events(body, chat), ": busy\r\n\r\nid: 7\r\ndata:{}\r\n\r\n")

    async def silent(self, writer, body, chat, headers):
        """Neither usage nor [DONE]."""
        return await self.stream(writer, events(body, chat, usage=False, done=False))

    async def split(self, writer, body, chat, headers):
        """A byte per chunk, a few bytes per write."""
        text = "".join(f"data: {payload}\n\n" for payload in events(body, chat)).encode()
        raw = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in text) + b"0\r\n\r\n"
        await self.head(writer)
        for at in range(0, len(raw), 97):
            writer.write(raw[at:at + 97])
            await writer.drain()
            await asyncio.sleep(0)
        return True

    async def until_close(self, writer, body, chat, headers):
        """No framing: the answer ends with the connection."""
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for payload in events(body, chat):
            writer.write(f"data: {payload}\n\n".encode())
            await writer.drain()
        return False

    async def stale(self, writer, body, chat, headers):
        """Closes a connection that it promised to keep."""
        await self.stream(writer, events(body, chat))
        return False

    async def busy(self, writer, body, chat, headers):
        return await self.plain(writer, 429, {"error": {"message": "queue full"}}, more="Retry-After: 1\r\n")

    async def coloured(self, writer, body, chat, headers):
        """What a terminal would obey, no UTF-8, and a character where a long message is cut."""
        return await self.plain(writer, 500, b"\x1b[31mred\xff\n\xc2\x9b" + "é".encode() * 300, kind="text/plain")

    async def early(self, writer, body, chat, headers):
        """Announces its answer (RFC 8297)."""
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
        return await self.good(writer, body, chat, headers)

    async def half_busy(self, writer, body, chat, headers):
        return await (self.busy if len(self.bodies) % 2 == 0 else self.good)(writer, body, chat, headers)

    async def drop(self, writer, body, chat, headers):
        """Goes away within a chunk."""
        await self.head(writer)
        await self.chunk(writer, f"data: {events(body, chat)[0]}\n\n".encode())
        writer.write(b"ff\r\ndata: {\"choi")
        await writer.drain()
        return False

    async def no_answer(self, writer, body, chat, headers):
        return False

    async def hang(self, writer, body, chat, headers):
        await self.head(writer)
        await writer.drain()
        await asyncio.sleep(30)
        return False

    async def garbage(self, writer, body, chat, headers):
        writer.write(b"this is not HTTP\r\n\r\n")
        await writer.drain()
        return False

    async def bad_chunk(self, writer, body, chat, headers):
        await self.head(writer)
        writer.write(b"xyz\r\nfoo\r\n")
        await writer.drain()
        return True

    async def bad_json(self, writer, body, chat, headers):
        return await self.stream(writer, ["{\"choices\":", "[DONE]"])

    async def fails(self, writer, body, chat, headers):
        return await self.stream(writer, [*events(body, chat)[:2], json.dumps({"error": {"message": "out of blocks"}}),
                                          "[DONE]"])

    async def cut(self, writer, body, chat, headers):
        """An orderly end in the middle."""
        return await self.stream(writer, events(body, chat)[:2])

    async def whole(self, writer, body, chat, headers):
        return await self.plain(writer, 200, {"choices": [{"text": "t0 t1", "finish_reason": "stop"}],
                                              "usage": {**USAGE, "completion_tokens": body["max_tokens"]}})

    async def locked(self, writer, body, chat, headers):
        if headers.get("authorization") != "Bearer secret":
            return await self.plain(writer, 401, {"error": {"message": "who are you?"}})
        return await self.good(writer, body, chat, headers)

    # ---- its life, in a thread of its own ----

    def run(self, ready):
        async def main():
            self.loop, self.stopped = asyncio.get_running_loop(), asyncio.Event()
            server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await self.stopped.wait()
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run(main())

    def __enter__(self):
        ready = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(ready,))
        self.thread.start()
        ready.wait(10)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stopped.set)
        self.thread.join(10)
