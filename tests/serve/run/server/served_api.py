"""A small model with a tokenizer, servers of it on real ports, and an engine that says what a test wants."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import numpy as np
import torch
from tests.serve.run.tiny_encoders import ENCODER_VOCABULARY, save_encoder
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainyard.serve.requests.request import Request
from trainyard.serve.run.embedding_model import EmbeddingForm
from trainyard.serve.run.engine_client import EngineClient
from trainyard.serve.run.engine_process import EngineFactory
from trainyard.serve.run.limited_tokenizer import LimitedTokenizer
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import EngineState, Floats, NewToken
from trainyard.serve.run.routed_engines import RoutedEngines
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.server.api_server import ApiServer, ServerLimits
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.server import HttpServer, listening

T = TypeVar("T")

VOCABULARY, CONTEXT = 1000, 512
TEMPLATE = (
    "{% if tools %}<|start|>tools\n{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}{{ (m.tool_calls or '') | string }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
END = 0  # the token <|end|>
_LETTERS = "eeeetttaaaoooiiinnnsshhrrddllucmfpgwybvkjxqz"


def save_tiny(
    folder: Path, *, template: str | None = TEMPLATE, head_dim: int = 16, added: tuple[str, ...] = ()
) -> Path:
    """Save a model with random weights, and a byte-level tokenizer; tokens may be added behind the others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_words(), trainer)
    tokenizer.add_tokens(list(added))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=template
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY + len(added),
        hidden_size=4 * head_dim,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_tiny_encoder(folder: Path) -> Path:
    """Save an encoder whose first 16 or 32 numbers are an embedding, too, with a tokenizer as BERT has it."""
    save_encoder(folder, matryoshka_dimensions=[16, 32])
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=ENCODER_VOCABULARY,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_words(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(folder)
    return folder


def _words(num: int = 2000) -> list[str]:
    """What tokenizers are trained on: always the same, as answers of models with random weights depend on it."""
    rng = random.Random(4)
    return [" " + "".join(rng.choices(_LETTERS, k=rng.randint(1, 7))) for _ in range(num)]


class Servers:
    """Servers in a thread, with one engine behind all of them."""

    def __init__(self, factory: EngineFactory) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.engine = RoutedEngines([EngineClient(factory.make_engine)])
        self.call(self.engine.start())
        self.tokenizer = LimitedTokenizer(factory.folder)
        self.model = HostedModel(
            "tiny", self.tokenizer.local, self.engine, "hermes", limited_tokenizer=self.tokenizer
        )
        self._servers: list[tuple[HttpServer, asyncio.Task[None]]] = []

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(300)  # of a busy machine, too

    def url(self, limits: ServerLimits | None = None, **more: Any) -> str:
        """Begin a server; return its address."""
        listener = listening("127.0.0.1", 0)

        async def begin() -> None:
            server = HttpServer(ApiServer({"tiny": self.model}, limits=limits, **more).app)
            self._servers.append((server, asyncio.create_task(server.serve(sockets=[listener]))))

        self.call(begin())
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def close(self) -> None:
        async def end() -> None:
            for server, _ in self._servers:
                server.should_exit = True
            await asyncio.gather(*(serving for _, serving in self._servers))
            await self.engine.close()
            await self.tokenizer.close()

        self.call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)


class FakeEngine:
    """Answers every request with the same tokens or the same embedding, when it may.

    Attributes
    ----------
    gate : set while it may.
    cancelled : names of requests that were cancelled.
    failure : is raised after the tokens, if there is one.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        failure: Exception | None = None,
        embedding_form: EmbeddingForm | None = None,
    ) -> None:
        self._tokens, self.failure, self.embedding_form = tokens, failure, embedding_form
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled: list[str] = []
        self.requests: list[Request] = []
        self.max_model_len, self.state = CONTEXT, EngineState()
        self.num_restarts = self.num_stuck = 0
        self.options = None
        self.is_ready, self.replicas = True, (self,)

    async def generate(
        self,
        request: Request,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int] = frozenset(),
        is_last: Callable[[NewToken], bool] = lambda token: False,
        routed: Callable[[int], None] = lambda number: None,
    ) -> AsyncGenerator[NewToken, None]:
        self.requests.append(request)
        tokens = self._tokens[: request.max_tokens]
        is_over = False
        try:
            for place, token in enumerate(tokens, 1):
                await self.gate.wait()
                await asyncio.sleep(0)
                is_end = place == len(tokens) and not self.failure
                reason = "stop" if token in stop_token_ids else "length" if is_end else ""
                new = NewToken(0, 0, token, None, reason, 0)
                is_over = is_last(new) or bool(reason)
                yield new
                if is_over:
                    return
            if self.failure:
                is_over = True
                raise self.failure
        finally:
            if not is_over:
                self.cancelled.append(request.name)

    async def embed(self, request: Request, routed: Callable[[int], None] = lambda number: None) -> Floats:
        self.requests.append(request)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.name)
            raise
        if self.failure:
            raise self.failure
        assert self.embedding_form is not None
        return np.full(self.embedding_form.width, 0.5, np.float32)


def call_api(
    tokenizer: ModelTokenizer,
    engine: FakeEngine,
    work: Callable[[httpx2.AsyncClient, ApiServer], Coroutine[Any, Any, T]],
    tool_call_parser: str = "",
    reads_priority: bool = True,
    reasoning_parser: str = "",
    **more: Any,
) -> T:
    """Let a test ask a server in this process, which says when to come again where it makes sense, and only there."""

    async def says_when(answer: httpx2.Response) -> None:
        await answer.aread()
        comes_again = answer.status_code in (429, 503) and "model_not_loaded" not in answer.text
        assert ("retry-after" in answer.headers) == comes_again, answer.text

    async def run() -> T:
        model = HostedModel(
            "tiny",
            tokenizer,
            engine,
            tool_call_parser,
            reads_priority=reads_priority,
            reasoning_parser=reasoning_parser,
        )
        api = ApiServer({"tiny": model}, **more)
        transport = httpx2.ASGITransport(api.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", event_hooks={"response": [says_when]}
        ) as client:
            return await work(client, api)

    return asyncio.run(run())


def posted(
    tokenizer: ModelTokenizer,
    engine: FakeEngine,
    path: str,
    body: Mapping[str, Any],
    tool_call_parser: str = "",
) -> httpx2.Response:
    """The response of a server in this process to one request."""

    async def work(client: httpx2.AsyncClient, api: ApiServer) -> httpx2.Response:
        return await client.post(path, json=body)

    return call_api(tokenizer, engine, work, tool_call_parser)


def prompt_of(tokenizer: ModelTokenizer, path: str, body: Mapping[str, Any]) -> Sequence[int]:
    """The prompt that a server gives its engine for a request."""
    engine = FakeEngine([5])
    response = posted(tokenizer, engine, path, body)
    assert response.status_code == 200, response.text
    (request,) = engine.requests
    return request.prompt_ids


CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "How many devices?"}]}
COMPLETION = {"model": "tiny", "prompt": "The cluster has"}
