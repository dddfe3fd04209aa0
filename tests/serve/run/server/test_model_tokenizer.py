"""Text and tokens: what comes token by token is what all tokens are together, and no character comes in halves."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.run.server.served_api import END, VOCABULARY, save_tiny
from tokenizers import Tokenizer, decoders, models

from trainyard.serve.errors import ServeError
from trainyard.serve.run.model_tokenizer import Detokenizer, ModelTokenizer

_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _pieces(tokenizer: ModelTokenizer, tokens: list[int]) -> list[str]:
    taking = Detokenizer(tokenizer)
    return [*(taking.take(token) for token in tokens), taking.rest()]


@_FIXTURE
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=30))
def test_pieces_joined_are_the_text(tokenizer, tokens):
    assert "".join(_pieces(tokenizer, tokens)) == tokenizer.decode(tokens)


@_FIXTURE
@given(st.text(st.sampled_from("aé€😀漢 \n\u0301"), max_size=20))
def test_characters_come_whole(tokenizer, written):
    pieces = _pieces(tokenizer, list(tokenizer.encode(written)))
    assert "".join(pieces) == written
    assert not any("\ufffd" in piece for piece in pieces)


@_FIXTURE
@given(st.lists(st.integers(2, VOCABULARY - 1), max_size=30))
def test_bytes_of_tokens_are_the_text(tokenizer, tokens):
    assert b"".join(map(tokenizer.bytes_of, tokens)).decode("utf-8", "replace") == tokenizer.decode(tokens)


def test_a_character_is_held_back_until_it_is_whole(tokenizer):
    tokens = list(tokenizer.encode("😀"))
    assert len(tokens) == 4
    assert _pieces(tokenizer, tokens) == ["", "", "", "😀", ""]
    assert _pieces(tokenizer, tokens[:2]) == ["", "", "\ufffd"]


@_FIXTURE
@given(st.lists(st.sampled_from("€😀éa\udcff\udce2\udc98"), min_size=100, max_size=130))
def test_bytes_that_are_no_text_are_told_when_no_character_is_so_long(tokenizer, chars):
    byte = {
        tokenizer.bytes_of(token): token for token in range(VOCABULARY) if len(tokenizer.bytes_of(token)) == 1
    }
    tokens = [byte[bytes([each])] for each in "".join(chars).encode("utf-8", "surrogateescape")]
    assert "".join(_pieces(tokenizer, tokens)) == tokenizer.decode(tokens)


@pytest.mark.parametrize("token", [b"\xff", b"<|end|>"])
def test_what_a_long_answer_without_text_is_read_for_is_bounded(tokenizer, monkeypatch, token):
    """Otherwise each token of it would take longer than the one before."""
    (number,) = (each for each in range(VOCABULARY) if tokenizer.bytes_of(each) == token)
    decode, most = tokenizer.decode, [0]

    def counted(tokens, shown=frozenset()):
        most.append(len(tokens))
        return decode(tokens, shown)

    monkeypatch.setattr(tokenizer, "decode", counted)
    assert "".join(_pieces(tokenizer, [number] * 500)) == decode([number] * 500)
    assert max(most) < 50


def test_other_threads_run_while_a_long_text_becomes_tokens(tokenizer):
    """A lock that this held would stop all answers of a server."""
    times_s, text = [], "abc é " * 100_000
    working = threading.Thread(target=tokenizer.encode, args=(text,))
    working.start()
    while working.is_alive():
        times_s.append(time.monotonic())
        time.sleep(0.001)
    assert len(times_s) > 5


def test_special_tokens_have_no_text(tokenizer):
    assert tokenizer.decode([END, *tokenizer.encode("a"), END]) == "a"
    assert tokenizer.bytes_of(END) == b"<|end|>"


def test_tokenizers_of_pieces_keep_their_spaces(tmp_path):
    """As in Llama 2: words begin with a mark, and what is no word is written by its bytes."""
    pieces = ["<unk>", "▁the", "▁car", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(pieces)}))
    tokenizer = ModelTokenizer(tmp_path)
    euro = [4 + byte for byte in "€".encode()]
    assert _pieces(tokenizer, [1, 2, 3, *euro, 2]) == ["the", " car", "s", "", "", "€", " car", ""]
    assert tokenizer.bytes_of(euro[0]) == "€".encode()[:1]


def test_tokens_that_end_an_answer_are_taken_from_all_files(tmp_path):
    folder = save_tiny(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 9}))
    assert ModelTokenizer(folder).stop_token_ids == {END, 7, 8, 9}


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(ServeError, match=r"has no tokenizer\.json"):
        ModelTokenizer(tmp_path)
