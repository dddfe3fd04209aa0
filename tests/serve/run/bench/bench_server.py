"""A server with the API of OpenAI whose answers a test decides, on a real port."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from trainyard.serve.run.server.server import HttpServer, listening

INTERVAL_S = 0.01


@dataclass
class FakeServer:
    """Answers as a test wants. What happens to a request is what its client is called.

    Attributes
    ----------
    refuses : fields that are refused with status 400; ``tokens`` stands for prompts that are tokens.
    models : their names.
    holds : requests that must have come before any is answered.
    tells_tokens : whether there is /tokenize.
    bodies : of all requests.
    num_open, most_open : requests now, and at most.
    """

    refuses: tuple[str, ...] = ()
    models: tuple[str, ...] = ("m",)
    holds: int = 0
    tells_tokens: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    num_open: int = 0
    most_open: int = 0
    url: str = ""

    @property
    def real(self) -> list[dict[str, Any]]:
        """Bodies without those by which is tried what the server takes, which ask for one token."""
        return [body for body in self.bodies if body["max_tokens"] > 1]

    async def models_document(self) -> Response:
        return JSONResponse({"data": [{"id": name} for name in self.models]})

    async def tokenize(self, request: Request) -> Response:
        if not self.tells_tokens:
            return JSONResponse({"detail": "Not Found"}, 404)
        words = (await request.json())["prompt"].split()
        return JSONResponse({"tokens": [7 * place for place, _ in enumerate(words)]})

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.keys.add(request.headers.get("authorization", ""))
        self.bodies.append(body)
        for name in self.refuses:
            given = isinstance(body.get("prompt"), list) if name == "tokens" else name in body
            if given:
                return JSONResponse({"error": {"message": f"no {name} here"}}, 400)
        fate = body.get("user", "")
        if fate.isdigit() and body["max_tokens"] > 1:
            return JSONResponse({"error": {"message": f"status {fate} was wanted"}}, int(fate))
        is_chat = request.url.path.endswith("chat/completions")
        return StreamingResponse(self._events(body, fate, is_chat), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any], fate: str, is_chat: bool) -> AsyncIterator[str]:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        num = body["max_tokens"]
        try:
            while len(self.real) < self.holds and num > 1:
                await asyncio.sleep(INTERVAL_S)
            if is_chat:
                yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            for place in range(num):
                await asyncio.sleep(INTERVAL_S)
                if num > 1 and place == 1:
                    if fate == "drops":
                        raise ConnectionError("the test drops it")
                    if fate == "error":
                        yield _event({"error": {"message": "the engine is lost"}})
                        return
                    if fate == "ends":
                        return
                    if fate == "nonsense":
                        yield "data: {\n\n"
                    if fate == "hangs":
                        await asyncio.sleep(60)
                    if fate == "short":
                        break
                text = {"delta": {"content": "word "}} if is_chat else {"text": "word "}
                yield _event({"choices": [text | {"finish_reason": None}], "usage": None})
            end = {"delta": {}} if is_chat else {"text": ""}
            yield _event({"choices": [end | {"finish_reason": "length"}]})
            if "stream_options" in body:
                used = {"prompt_tokens": 1000, "completion_tokens": 1 if fate == "short" else num}
                yield _event({"choices": [], "usage": used})
            yield "data: [DONE]\n\n"
        finally:
            self.num_open -= 1


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Let a server answer on a port."""
    app = FastAPI()
    app.add_api_route("/v1/models", server.models_document)
    app.add_api_route("/tokenize", server.tokenize, methods=["POST"])
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.add_api_route(path, server.answer, methods=["POST"])
    with serving(app) as server.url:
        yield server


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Let an application answer on a port, in a thread; yields its address."""
    listener = listening("127.0.0.1", 0)
    http = HttpServer(app)
    thread = threading.Thread(target=lambda: asyncio.run(http.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join(30)


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"
