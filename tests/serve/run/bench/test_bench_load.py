"""The load generator against a server whose answers are known."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from tests.serve.run.bench.bench_server import INTERVAL_S, FakeServer, running

from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import PrefixBlocks, Request, TracedRequest
from trainyard.serve.run.bench.load_generator import BenchProgress, generate_load
from trainyard.serve.run.bench.streamed_response import StreamedResponse, error_message, send_request
from trainyard.serve.run.bench.summary import failures, request_lists, summary
from trainyard.serve.run.bench.target import Target
from trainyard.serve.run.server.server import listening

_KEYS = {
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput", "max_concurrent_requests",
    "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms",
    "mean_tpot_ms", "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms",
    "mean_itl_ms", "median_itl_ms", "std_itl_ms", "p99_itl_ms",
    "mean_e2el_ms", "median_e2el_ms", "std_e2el_ms", "p99_e2el_ms",
}  # fmt: skip
_OWN_KEYS = {"mean_lateness_ms", "p99_lateness_ms", "max_lateness_ms", "num_shorter_answers"}
_LISTS = {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors"}


def traced(
    name: int, client: str = "", *, num_tokens: int = 5, arrival_s: float = 0.0, **more
) -> TracedRequest:
    request = Request(str(name), arrival_s, 6, 100, client=client, **more)
    return TracedRequest(request, num_tokens)


def test_all_requests_are_answered_and_counted():
    with running(FakeServer()) as server:
        run = generate_load(Target(server.url), [traced(i, arrival_s=5 + i / 50) for i in range(20)])
    found = summary(run)
    assert found.keys() == _KEYS | _OWN_KEYS
    assert (found["completed"], found["failed"]) == (20, 0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20_000, 100)
    assert found["request_goodput"] is None
    assert found["request_throughput"] == pytest.approx(20 / run.duration_s)
    assert found["total_token_throughput"] == pytest.approx(20_100 / run.duration_s)
    for each in run.results:
        assert each.sent_s >= each.due_s
        assert len(each.token_times_s) == 5
        # No answer can come before it was sent, however slow this machine is.
        assert each.ttft_s >= 0.9 * INTERVAL_S
        assert each.e2e_s >= 0.9 * 5 * INTERVAL_S
        assert sum(each.itl_s) == pytest.approx(each.token_times_s[-1] - each.token_times_s[0])
        assert each.tpot_s == pytest.approx((each.e2e_s - each.ttft_s) / 4)
    assert [each.due_s for each in run.results] == pytest.approx([i / 50 for i in range(20)])


def test_numbers_of_a_run_are_those_of_its_requests():
    with running(FakeServer()) as server:
        run = generate_load(Target(server.url), [traced(i, num_tokens=3) for i in range(4)])
    found, lists = summary(run), request_lists(run)
    assert lists.keys() == _LISTS
    assert {len(each) for each in lists.values()} == {4}
    assert found["mean_ttft_ms"] == pytest.approx(1e3 * sum(lists["ttfts"]) / 4)
    assert found["mean_e2el_ms"] == pytest.approx(1e3 * sum(lists["latencies"]) / 4)
    assert found["mean_itl_ms"] == pytest.approx(1e3 * sum(map(sum, lists["itls"])) / 8)
    assert found["max_lateness_ms"] == pytest.approx(1e3 * max(lists["queue_times"]))
    assert lists["errors"] == [""] * 4


def test_sends_do_not_wait_for_answers():
    with running(FakeServer(holds=30)) as server:  # answers nothing until all are there
        run = generate_load(Target(server.url), [traced(i, arrival_s=i / 100) for i in range(30)])
    assert summary(run)["completed"] == 30
    assert server.most_open == 30
    assert summary(run)["max_concurrent_requests"] == 30


def test_only_so_many_requests_are_open():
    with running(FakeServer()) as server:
        run = generate_load(Target(server.url), [traced(i) for i in range(12)], max_concurrency=3)
    assert server.most_open <= 3
    assert summary(run)["completed"] == 12
    assert summary(run)["max_concurrent_requests"] == 3
    assert run.results[-1].lateness_s > run.results[0].lateness_s


def test_failures_are_counted_and_end_nothing():
    fates = ["", "429", "drops", "503", "error", "429", "ends", "nonsense", "", "short"]
    with running(FakeServer()) as server:
        requests = [traced(i, fate, e2e_s=60.0) for i, fate in enumerate(fates)]
        told: list[tuple[int, int, int]] = []

        def tell(progress: BenchProgress) -> None:
            told.append((progress.num_sent, progress.num_answered, progress.num_failed))

        run = generate_load(Target(server.url), requests, tell=tell)
    kinds = ["" if each.failure is None else each.failure.kind for each in run.results]
    expected = [
        "",
        "HTTP 429",
        "stream",
        "HTTP 503",
        "stream",
        "HTTP 429",
        "stream",
        "stream",
        "",
        "",
    ]
    assert kinds == expected
    found = summary(run)
    assert (found["completed"], found["failed"], found["num_shorter_answers"]) == (3, 7, 1)
    assert found["request_goodput"] == pytest.approx(3 / run.duration_s)
    assert told[-1] == (10, 3, 7)
    by_kind = {kind: (num, message) for kind, num, message in failures(run)}
    assert by_kind["HTTP 429"] == (2, "status 429 was wanted")
    assert by_kind["stream"][0] == 4
    assert run.results[4].failure.message == "the engine is lost"
    assert request_lists(run)["ttfts"][1] is None


def test_counts_that_cannot_be_are_not_taken():
    response = StreamedResponse()
    response.take({"usage": {"prompt_tokens": 7, "completion_tokens": -1}}, 0.0)
    response.take({"usage": {"prompt_tokens": 10**30, "completion_tokens": True}}, 0.0)
    assert (response.prompt_tokens, response.output_tokens) == (7, None)


def test_an_answer_that_does_not_end_is_given_up():
    body = b'{"max_tokens": 5, "prompt": "a", "user": "hangs"}'
    with running(FakeServer()) as server:

        async def asked():
            async with Target(server.url).client() as client:
                return await send_request(client, "/v1/completions", body, 0.5, time.perf_counter)

        failure = asyncio.run(asked()).failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("timeout", "no complete answer within 0.5 s")


def test_a_run_without_answers_has_numbers():
    with running(FakeServer()) as server:
        run = generate_load(Target(server.url), [traced(0, "500"), traced(1, "500")])
    found = summary(run)
    assert (found["completed"], found["failed"], found["max_concurrent_requests"]) == (0, 2, 0)
    assert math.isnan(found["mean_ttft_ms"])


def test_objectives_make_goodput():
    with running(FakeServer()) as server:
        within = [traced(i, ttft_s=100.0) for i in range(3)]
        run = generate_load(Target(server.url), [*within, traced(3, ttft_s=INTERVAL_S / 10)])
    assert summary(run)["request_goodput"] == pytest.approx(3 / run.duration_s)


@pytest.mark.parametrize("tells_tokens", [True, False])
def test_prompts_are_tokens_with_equal_beginnings(tells_tokens: bool):
    shared = PrefixBlocks((1, 2), 3), PrefixBlocks((1, 3), 3)
    requests = [traced(0, prefix=shared[0]), traced(1, prefix=shared[1], prompt_ids=()), traced(2)]
    with running(FakeServer(tells_tokens=tells_tokens)) as server:
        generate_load(Target(server.url), requests)
    first, second, third = (body["prompt"] for body in sorted(server.real, key=lambda each: each["prompt"]))
    everything = [first, second, third]
    assert all(len(prompt) == 6 for prompt in everything)
    assert len({tuple(prompt[:3]) for prompt in everything}) == 2
    assert len({tuple(prompt) for prompt in everything}) == 3
    if tells_tokens:
        assert all(token % 7 == 0 for prompt in everything for token in prompt)
    assert all(body["ignore_eos"] is True and body["max_tokens"] == 5 for body in server.real)


def test_own_tokens_of_a_trace_are_sent():
    with running(FakeServer()) as server:
        generate_load(Target(server.url), [traced(0, prompt_ids=(3, 1, 4, 1, 5, 9))])
    assert [body["prompt"] for body in server.real] == [[3, 1, 4, 1, 5, 9]]


@pytest.mark.parametrize(
    ("refuses", "format"),
    [
        (("tokens",), (False, True, True)),
        (("ignore_eos",), (True, False, True)),
        (("stream_options",), (True, True, False)),
        (("tokens", "ignore_eos", "stream_options"), (False, False, False)),
    ],
)
def test_what_a_server_does_not_take_is_left_out(refuses: tuple[str, ...], format: tuple[bool, bool, bool]):
    with running(FakeServer(refuses=refuses)) as server:
        run = generate_load(Target(server.url), [traced(0), traced(1)])
    assert (run.format.sends_tokens, run.format.fixes_length, run.format.includes_usage) == format
    found = summary(run)
    assert (found["completed"], found["total_output_tokens"]) == (2, 10)
    assert found["total_input_tokens"] == (2000 if run.format.includes_usage else 12)
    if not run.format.sends_tokens:
        assert all(len(body["prompt"].split()) == 6 for body in server.real)


def test_a_conversation_has_its_prompt_as_a_message():
    with running(FakeServer()) as server:
        run = generate_load(Target(server.url + "/v1/", "chat"), [traced(0)])
    (message,) = server.real[0]["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 6
    # Who speaks, and the end, are no tokens.
    assert len(run.results[0].token_times_s) == 5


def test_the_key_and_fields_of_a_request_are_sent():
    with running(FakeServer()) as server:
        target = Target(server.url, api_key="secret")
        generate_load(target, [traced(0, "alice", priority=2, cache_salt="s")])
    assert server.keys == {"Bearer secret"}
    assert "secret" not in repr(target)
    body = server.real[0]
    assert (body["user"], body["priority"], body["cache_salt"]) == ("alice", 2, "s")


def test_no_connection_is_a_failure_of_a_request():
    with listening("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def asked():
        async with Target(url).client() as client:
            return await send_request(client, "/v1/completions", b"{}", 30.0, time.perf_counter)

    failure = asyncio.run(asked()).failure
    assert failure is not None
    assert failure.kind == "connection"
    with pytest.raises(ServeError, match=r"cannot be reached: .*; is the server running"):
        generate_load(Target(url), [traced(0)])


def test_what_cannot_be_sent_is_refused():
    target = Target("http://127.0.0.1:9")
    with pytest.raises(ServeError, match="'1' continues '0'"):
        generate_load(target, [traced(0), traced(1, parent="0")])
    with pytest.raises(ServeError, match="'0' wants 2 answers"):
        generate_load(target, [traced(0, num_samples=2)])
    with pytest.raises(ServeError, match="no requests to send"):
        generate_load(target, [])
    for url in ("", "127.0.0.1:8000", "ftp://host", "http://", "http://host?x=1"):
        with pytest.raises(ServeError, match="no address of a server"):
            Target(url)
    with pytest.raises(ServeError, match="the key has characters"):
        Target("http://host", api_key="a\nb")


def test_a_server_that_takes_nothing_is_refused():
    with running(FakeServer(refuses=("model",))) as server:
        with pytest.raises(ServeError, match=r"takes no request on /v1/completions.*no model here"):
            generate_load(Target(server.url), [traced(0)])
        assert len(server.bodies) == 8
    with (
        running(FakeServer(models=("a", "b"))) as server,
        pytest.raises(ServeError, match="several models: a, b; name one with --model"),
    ):
        generate_load(Target(server.url), [traced(0)])
    with (
        running(FakeServer(models=())) as server,
        pytest.raises(ServeError, match="tells no model"),
    ):
        generate_load(Target(server.url), [traced(0)])


def test_connections_are_used_again():
    with running(FakeServer()) as server:

        async def twice() -> int:
            async with Target(server.url).client() as client:
                for _ in range(3):
                    body = b'{"max_tokens": 2, "prompt": "a"}'
                    assert (
                        await send_request(client, "/v1/completions", body, 30.0, time.perf_counter)
                    ).failure is None
                pool = client._transport._pool
                return len(pool.connections)

        assert asyncio.run(twice()) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"  ", "nothing was said"),
        (b" no json ", "no json"),
        (b'{"error": {"message": "too long"}}', "too long"),
        ({"detail": [1]}, "[1]"),
    ],
)
def test_the_message_of_an_error_is_read_from_its_response(
    given: bytes | dict[str, list[int]], said: str
) -> None:
    assert error_message(given) == said
