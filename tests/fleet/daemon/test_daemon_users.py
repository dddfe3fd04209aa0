"""Tokens and addresses."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest
from fastapi import Request

from trainyard.cli import main as cli
from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.client import read_token
from trainyard.fleet.daemon.daemon import Daemon
from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.own import reread_form
from trainyard.hardware.interface import is_loopback
from trainyard.private import owner_of_bearer, write_private


def users(folder: Path, text: str) -> Users:
    path = folder / "tokens"
    write_private(path, text)
    return Users.read(path)


def test_a_token_names_its_user(tmp_path: Path) -> None:
    found = users(tmp_path, "# who\n\nann: secret-of-ann\nbob:secret-of-bob\nann:another-of-ann\n")
    assert found.of("Bearer secret-of-ann") == found.of("bearer another-of-ann") == "ann"
    assert found.of("Bearer secret-of-bob") == "bob"
    for given in (
        "",
        "Bearer",
        "Bearer ",
        "Basic secret-of-ann",
        "Bearer secret-of-an",
        "secret-of-ann",
        "Bearer é",
    ):
        with pytest.raises(Refusal, match="a token is needed") as refusal:
            found.of(given)
        assert refusal.value.status == 401


@pytest.mark.parametrize(
    "given", ["", "Bearer secret-of-ann", "Bearer secret-of-bob", "Basic secret-of-bob", "Bearer s"]
)
def test_every_secret_is_compared_in_constant_time(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[bytes]()
    original = hmac.compare_digest

    def compare(first: bytes, second: bytes) -> bool:
        compared.append(first)
        return original(first, second)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    owner_of_bearer({"secret-of-ann": "ann", "secret-of-bob": "bob"}, given)
    assert compared == [b"secret-of-ann", b"secret-of-bob"]


def test_tokens_are_not_shown(tmp_path: Path) -> None:
    assert "ann" not in repr(users(tmp_path, "ann:ann-s-token\n"))


def test_administrators_are_named(tmp_path: Path) -> None:
    found = users(tmp_path, "ann:secret-of-ann:admin\nbob:secret-of-bob\n")
    assert found.admins == {"ann"}
    assert found.of("Bearer secret-of-ann") == "ann"


def test_only_owners_and_administrators_have_a_job(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    form = '{"name": "a", "num_devices": 1, "model": "gpt-tiny", "batch_size": 4, "steps": 12}'
    store.add(reread_form(form, Path("form")), "ann", form, 1.0)
    daemon = Daemon.__new__(Daemon)  # nothing is scheduled
    daemon.store = store
    with pytest.raises(Refusal, match="is of user 'ann'"):
        daemon.own_job("a", "bob")
    assert daemon.own_job("a", "ann") == daemon.own_job("a", "bob", is_admin=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no tokens: a token file has lines 'user:token'"),
        ("ann:secret-1\nbob\n", "line 2: a token file has lines"),
        ("ann:short", "line 1: a token file has lines 'user:token'.* at least 8"),
        (":secret-of-none", "line 1"),
        ("ann:secret-of-ann:root", "line 1: .*'user:token:admin'"),
        ("ann:secret-of-ann:admin:more", "line 1"),
        ("ann:the-same-one\nbob:the-same-one\n", "line 2: this token is ann's; give bob another one"),
    ],
)
def test_errors_in_token_files(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FleetError, match=said):
        users(tmp_path, text)


def test_without_tokens_only_this_machine_gets_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Users().of("") == ""
    for host in ("127.0.0.1", "127.3.0.1", "::1", "localhost"):
        Users().check_host(host)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", ""):
        assert not is_loopback(host)
        with pytest.raises(FleetError, match="give --token-file FILE"):
            Users().check_host(host)
    users(tmp_path, "ann:secret-of-ann").check_host("0.0.0.0")
    folder = tmp_path / "fleet"
    arguments = ("--cluster", "1x1xlocal", "--folder", str(folder), "--host", "0.0.0.0")
    assert cli.main(("fleet", "daemon", *arguments)) == 2
    assert "without tokens everybody who reaches 0.0.0.0 could run jobs" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:8470", True),
        ("localhost", True),
        ("[::1]:8470", True),
        ("evil.example:8470", False),
        ("", False),
    ],
)
def test_without_tokens_nobody_gets_in_under_another_name(tmp_path: Path, host: str, is_ours: bool) -> None:
    request = Request({"type": "http", "headers": [(b"host", host.encode())]})
    api = Api(None, Users())  # type: ignore[arg-type]  (who asks is no matter of the daemon)
    if is_ours:
        assert api.user(request) == ""
    else:
        with pytest.raises(Refusal, match="answers as localhost only"):
            api.user(request)


@pytest.mark.parametrize("host", ["[", "]", "[::1", "[nothing]"])
def test_a_host_that_cannot_be_read_is_refused(host: str) -> None:
    request = Request({"type": "http", "headers": [(b"host", host.encode())]})
    with pytest.raises(Refusal, match="header Host is") as refused:
        Api(None, Users()).user(request)  # type: ignore[arg-type]
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "text",
    [
        "secret-of-ann\n",
        "ann:secret-of-ann:admin",
        "# mine\n # too\nann:secret-of-ann\n",
        "\nann: secret-of-ann",
    ],
)
def test_a_client_reads_its_token(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine"
    write_private(path, text)
    assert read_token(path) == "secret-of-ann"


def test_a_client_without_a_token_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    write_private(path, "\n# nothing\n")
    with pytest.raises(FleetError, match="holds no token"):
        read_token(path)
