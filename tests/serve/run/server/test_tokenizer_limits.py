"""What a client's schema, or a file of a served folder, takes is bounded; the server and all others go on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.serve.run.server.served_api import CHAT, COMPLETION, FakeEngine, Servers

from trainyard.serve.errors import ServeError
from trainyard.serve.run.limited_tokenizer import LimitedTokenizer, TokenizerBusyError
from trainyard.serve.run.model_tokenizer import ModelTokenizer, TooManyTokensError
from trainyard.serve.run.sampling import OutputForm
from trainyard.serve.run.server.api_server import ApiServer
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.tokenizer_work import (
    CheckConstraint,
    DecodeTokens,
    EncodeConversation,
    EncodeTexts,
)

_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def _schema(**schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A folder of the small model, to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "changed"))


def _change(folder: Path, **fields: Any) -> Path:
    """Change fields of ``tokenizer.json``."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), "utf-8")
    return folder


def test_schema_that_would_take_the_engine_for_ever_is_refused_and_others_are_answered(
    url: str, servers: Servers
):
    """181 bytes took the engine 32 CPU seconds and 1.9 GB; the second took no end."""
    engine = servers.engine.replicas[0].client.process_id
    for number in (4_000_037, 99_999_989):
        body = CHAT | {"max_tokens": 4} | _schema(type="integer", multipleOf=number)
        found = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=600)
        assert found.status_code == 400, found.text
        error = found.json()["error"]
        assert error["param"] == "response_format"
        assert "more than 1 CPU seconds" in error["message"] or "GiB of memory" in error["message"]
        assert httpx2.get(f"{url}/health", timeout=600).status_code == 200
        assert httpx2.post(f"{url}/v1/completions", json=COMPLETION, timeout=600).status_code == 200
    assert servers.engine.replicas[0].client.process_id == engine


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in _LETTERS]}, id="patterns"),
        pytest.param(
            {"allOf": [{"type": "integer", "multipleOf": 3001}, {"multipleOf": 3011}]}, id="multiples"
        ),
    ],
)
def test_kin_of_such_schemas(servers: Servers, schema: dict[str, Any]):
    work = CheckConstraint(OutputForm(json.dumps(schema)))
    problem = servers.call(servers.tokenizer.do(work))
    assert "CPU seconds" in problem or "GiB" in problem
    pid = servers.tokenizer._constraints.process.pid
    assert servers.call(servers.tokenizer.do(work)) == problem  # as it is known, no process does it again
    assert servers.tokenizer._constraints.process.pid == pid


def test_schema_that_is_allowed_is_checked_once_and_compiled_once_for_all_samples(
    url: str, servers: Servers, tokenizer: ModelTokenizer
):
    body = CHAT | {"max_tokens": 40, "n": 3, "seed": 1} | _schema(type="array", items={"enum": [1, 22]})
    found = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=600).json()
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert len(texts) == 3
    assert all(set(text) <= set("[] ,12\n") and text.startswith("[") for text in texts)
    outputs = tokenizer.structured_outputs
    outputs._compiled.cache_clear()
    for _ in range(3):
        outputs.constraint(OutputForm('{"enum": [1, 22]}'))
    assert outputs._compiled.cache_info().misses == 1


def test_answers_that_share_a_compiled_schema_do_not_share_where_they_are(tokenizer: ModelTokenizer):
    first, second = (tokenizer.structured_outputs.constraint(OutputForm('{"const": 12}')) for _ in range(2))
    begin = np.array(first.allowed())
    first.take(tokenizer.encode("1")[0])
    assert (second.allowed() == begin).all()
    assert not (first.allowed() == begin).all()


@pytest.fixture(scope="module")
def looping(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedTokenizer]:
    """A model whose chat template does what the message says."""
    path = Path(shutil.copytree(folder, tmp_path_factory.mktemp("looping") / "model"))
    template = (
        "{% set m = messages[0].content %}{% if m == 'loop' %}" + _LOOP + "{% elif m == 'divide' %}{{ 1/0 }}"
        "{% elif m == 'grow' %}{{ 'x' * 10000000000 }}{% elif m == 'double' %}{% set ns = namespace(s='xxxxxxxx') %}"
        "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
        "{% elif m == 'power' %}{{ (m | length) ** (9 ** 9) }}"
        "{% elif m == 'recurse' %}{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}{% elif m == 'none' %}{{ none.a.b }}"
        "{% elif m == 'long' %}{{ 'abc ' * 20000000 }}{% else %}{{ m }}{% endif %}"
    )
    _chat_template(path, template)
    found = LimitedTokenizer(path)
    yield found
    asyncio.run(found.close())


def _chat_template(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("loop", "takes more than 5 CPU seconds"),
        ("divide", "division by zero"),
        ("grow", "GiB of memory"),
        pytest.param("double", "GiB of memory", marks=pytest.mark.slow),
        pytest.param("power", "takes more than 5 CPU seconds", marks=pytest.mark.slow),
        ("recurse", "recursion"),
        ("none", "has no attribute"),
        ("long", "more than"),
    ],
)
def test_template_that_does_what_none_should_is_one_error(
    looping: LimitedTokenizer, runner: asyncio.Runner, does: str, told: str
):
    def work(content: str) -> EncodeConversation:
        return EncodeConversation.of([{"role": "user", "content": content}], [], allowed_tokens=500)

    with pytest.raises(ServeError, match=told):
        runner.run(looping.do(work(does)))
    assert runner.run(looping.do(work("fine"))) == (looping.local.encode("fine"),)


def test_template_that_raises_is_the_clients_error_and_the_server_lives(folder: Path, changed: Path):
    _chat_template(changed, "{{ 1/0 }}")
    limited = LimitedTokenizer(changed)

    async def run() -> tuple[httpx2.Response, httpx2.Response]:
        model = HostedModel("tiny", limited.local, FakeEngine([70]), limited_tokenizer=limited)
        transport = httpx2.ASGITransport(ApiServer({"tiny": model}).app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            chat = await client.post("/v1/chat/completions", json=CHAT)
            completion = await client.post("/v1/completions", json=COMPLETION)
        await limited.close()
        return chat, completion

    chat, completion = asyncio.run(run())
    assert (chat.status_code, completion.status_code) == (400, 200)
    assert "division by zero" in chat.json()["error"]["message"]
    assert chat.json()["error"]["param"] == "messages"


_SLOW_PATTERN = {"Regex": r"(x+x+)+y"}  # takes time that doubles with each x


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Replace", "pattern": _SLOW_PATTERN, "content": ""}},
        {
            "pre_tokenizer": {
                "type": "Split", "pattern": _SLOW_PATTERN, "behavior": "Isolated", "invert": False,
            }
        },
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 50}] * 9,
            }
        },
    ],
    ids=["normalizer", "split", "growing"],
)  # fmt: skip
def test_tokenizer_that_takes_for_ever_is_one_error(
    changed: Path, runner: asyncio.Runner, part: dict[str, Any]
):
    limited = LimitedTokenizer(_change(changed, **part))
    with pytest.raises(ServeError, match=r"writing and tokenizing the prompt (takes more than|fails with)"):
        runner.run(limited.do(EncodeTexts(("x" * 60,))))
    assert runner.run(limited.do(EncodeTexts(("a",)))) == (limited.local.encode("a"),)
    runner.run(limited.close())


@pytest.mark.parametrize(
    ("decoder", "told"),
    [
        ({"type": "Replace", "pattern": _SLOW_PATTERN, "content": ""}, "regular expression"),
        ({"type": "Replace", "pattern": {"String": ""}, "content": "a"}, "regular expression"),
        (
            {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "e"}, "content": "eeee"}] * 20},
            "times as long",
        ),
        ({"type": "BPEDecoder", "suffix": ""}, "suffix of its BPEDecoder is empty"),
        (
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "", "cleanup": True},
            "word_delimiter_token of its CTC is empty",
        ),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}] * 65}, "66 parts"),
    ],
)  # fmt: skip
def test_decoder_runs_beside_all_answers_so_that_it_is_refused_at_load(
    changed: Path, decoder: dict[str, Any], told: str
):
    with pytest.raises(ServeError, match=told):
        ModelTokenizer(_change(changed, decoder=decoder))


def test_token_that_is_very_long_is_refused_at_load(changed: Path):
    config = json.loads((changed / "tokenizer.json").read_text("utf-8"))
    config["added_tokens"].append(
        config["added_tokens"][0] | {"id": 999_999, "content": "a" * 70_000, "special": False}
    )
    with pytest.raises(ServeError, match="token of 70000 characters"):
        ModelTokenizer(_change(changed, added_tokens=config["added_tokens"]))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"model": 3}', "null", '{"version":"1.0","model":{"type":"BPE"}}']
)
def test_tokenizer_that_cannot_be_loaded_is_told_before_anything_is_served(changed: Path, text: str):
    (changed / "tokenizer.json").write_text(text)
    with pytest.raises(ServeError, match="tokenizer of") as error:
        LimitedTokenizer(changed)
    assert "ServeError" not in str(error.value)


def test_prompt_that_is_far_too_long_is_not_tokenized_to_its_end(tokenizer: ModelTokenizer):
    text = "The cluster has many devices. " * 100_000
    with pytest.raises(
        TooManyTokensError, match=r"^has more than \d+ tokens; allowed are 511; shorten it$"
    ) as error:
        tokenizer.encode(text, allowed_tokens=511)
    assert error.value.is_part
    assert 2 * 511 < error.value.num_tokens < 100_000
    with pytest.raises(TooManyTokensError, match=r"^has \d+ tokens; allowed are 3; shorten it$") as error:
        tokenizer.encode("a b c d e f", allowed_tokens=3)
    assert not error.value.is_part


def test_beginning_of_a_long_text_has_the_tokens_of_the_whole(tokenizer: ModelTokenizer):
    text = "The cluster has many devices. " * 20_000
    assert tokenizer.encode(text, max_tokens=300) == tokenizer.encode(text)[:300]
    spaces = " " * 300_000 + "end"  # few tokens for many characters
    assert tokenizer.encode(spaces, allowed_tokens=10**7) == tokenizer.encode(spaces)


def test_long_work_does_not_keep_short_work_waiting(servers: Servers):
    tokenizer = servers.tokenizer
    pid = _pid_of_long(servers)
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = asyncio.run_coroutine_threadsafe(tokenizer.do(EncodeTexts(("a" * 70_000,))), servers._loop)
        assert servers.call(tokenizer.do(EncodeTexts(("a",)))) == (tokenizer.local.encode("a"),)
        assert not waiting.done()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert waiting.result(300) == (tokenizer.local.encode("a" * 70_000),)


def _pid_of_long(servers: Servers) -> int:
    servers.call(
        servers.tokenizer.do(EncodeTexts(("b" * 70_000,)))
    )  # it is started with the first of such texts
    pid = servers.tokenizer._long.process.pid
    assert pid is not None
    return pid


def test_no_more_work_waits_than_there_is_room_for(servers: Servers):
    lane = servers.tokenizer._long
    lane._num_waiting += 16
    try:
        with pytest.raises(TokenizerBusyError, match="16 other requests wait"):
            servers.call(servers.tokenizer.do(EncodeTexts(("a" * 70_000,))))
    finally:
        lane._num_waiting -= 16


def test_texts_of_tokens_are_bounded(tokenizer: ModelTokenizer):
    word = max(range(2, 900), key=lambda token: len(tokenizer.decode([token])))
    assert DecodeTokens(((word,) * 3,)).do(tokenizer) == (tokenizer.decode([word] * 3),)
    length = len(tokenizer.decode([word]))
    with pytest.raises(ServeError, match="characters of text"):
        DecodeTokens(((word,) * ((1 << 25) // length + 1),)).do(tokenizer)


def test_verdict_on_a_schema_is_short_however_long_the_schema_is(tokenizer: ModelTokenizer):
    schema = json.dumps({"type": "x" * 100_000})
    assert len(CheckConstraint(OutputForm(schema)).do(tokenizer)) == 2000
