"""`outlast requests`: what is shown of requests under an idempotency key, and what can be said of those in doubt."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

import outlast
from outlast.cli.answer import TEMPLATE
from outlast.cli.main import app
from outlast.http.request import GuardedRequest

from .conftest import World
from .test_prompt import Terminal

HOUR = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)


NOTE = b"POST /orders \x1b[2J\xe2\x80\xae"


def begin(
    world: World,
    key: str,
    *,
    hold: timedelta = MOMENT,
    answer: bytes | None = None,
    note: bytes = NOTE,
) -> str:
    """Begin a request, and perhaps end it; return its id."""

    async def main() -> str:
        async with outlast.connect(world.url) as client:
            given: dict[str, Any] = {"fingerprint": "f", "hold": hold, "keep": HOUR}
            begun = await client.requests.begin(key, token=f"t-{key}", note=note, **given)
            if answer is not None:
                await client.requests.end(key, begun.token, answer, HOUR)
            return begun.request_id

    return asyncio.run(main())


def state_of(world: World, request: str) -> dict[str, Any]:
    """Return a request as a document."""
    return json.loads(world.cli("requests", "show", request, "--json").stdout)


def test_list(world: World) -> None:
    """Each is listed with its state, newest first; a state narrows the list."""
    doubt, running = begin(world, "a"), begin(world, "b", hold=HOUR)
    done = begin(world, "c", answer=b"201")
    listed = json.loads(world.cli("requests", "list", "--json").stdout)
    assert [(one["request_id"], one["state"]) for one in listed] == [
        (done, "done"),
        (running, "running"),
        (doubt, "in doubt"),
    ]
    assert {one["answer"] for one in listed} == {None}
    text = world.cli("requests", "list", "--state", "in-doubt").stdout
    assert doubt in text
    assert "POST /orders \\u001b[2J\\u202e" in text
    assert running not in text
    assert "no request is freed" in world.cli("requests", "list", "--state", "freed").stdout
    assert done in world.cli("requests", "list", "--limit", "1").stdout
    assert "no requests" in world.cli("requests", "list", "--tenant", "other").stdout


def test_show_of_one_in_doubt(world: World) -> None:
    """It says since when nobody holds it, and the two things that can be typed; nothing obeys the terminal."""
    request = begin(world, "a")
    text = world.cli("requests", "show", request.upper()).stdout
    for words in (
        "in doubt",
        "and not ended",
        "t-a",
        "POST /orders \\u001b[2J\\u202e",
        "look it up",
    ):
        assert words in text
    assert f"requests resolve {request} --token t-a --not-applied --reason TEXT" in text
    assert f"requests resolve {request} --token t-a --applied FILE --reason TEXT" in text
    assert "\x1b" not in text


def test_show_of_others(world: World) -> None:
    """One that runs says for how long it is held; one that is done shows its answer, as text where it is text."""
    running = world.cli("requests", "show", begin(world, "a", hold=HOUR)).stdout
    assert "for 59 minutes" in running
    assert "look it up" not in running
    done = begin(world, "b", answer=b'{"id": 1}\n')
    text = world.cli("requests", "show", done).stdout
    assert "10 bytes" in text
    assert '{"id": 1}' in text
    assert base64.b64decode(state_of(world, done)["answer"]) == b'{"id": 1}\n'
    odd = world.cli("requests", "show", begin(world, "c", answer=b"\xff\x00")).stdout
    assert "(2 bytes that are no text; --json shows them in base64)" in odd
    long = world.cli("requests", "show", begin(world, "d", answer="ä".encode() * 9000)).stdout
    assert "18000 bytes" in long
    assert "ä" * 2000 + " …" in long


def test_it_did_not_happen(world: World) -> None:
    """The key is free, and the record says who said so and why."""
    request = begin(world, "a")
    words = ("requests", "resolve", request, "--not-applied", "--reason", "not in the books")
    result = world.cli(*words, "--token", "t-a")
    assert result.exit_code == 0, result.output
    assert "the key is free again" in result.stdout
    assert "freed" in world.cli("requests", "show", request).stdout
    assert ": not in the books" in world.cli("requests", "show", request).stdout
    assert "@" in state_of(world, request)["by"]
    again = world.cli(*words[:-1], "other", "--token", "t-a")
    assert again.exit_code == 1
    assert "somebody has said already" in again.stderr


def test_it_happened(world: World) -> None:
    """What the file or standard input holds is answered from then on."""
    file = world.folder / "answer"
    file.write_bytes(b"\x00201")
    request = begin(world, "a")
    words = ("requests", "resolve", request, "--applied", str(file), "--reason", "x")
    result = world.cli(*words, "--token", "t-a")
    assert result.exit_code == 0, result.output
    assert base64.b64decode(state_of(world, request)["answer"]) == b"\x00201"
    request = begin(world, "b")
    words = ["requests", "resolve", request, "--applied", "-", "--reason", "x", "--token", "t-b"]
    runner = CliRunner(env={"OUTLAST_DATABASE_URL": world.url})
    assert runner.invoke(app, words, input=b"piped").exit_code == 0
    assert base64.b64decode(state_of(world, request)["answer"]) == b"piped"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--reason", "x", "--token", "t-a"), 2, "--applied FILE and --not-applied"),
        (("--not-applied", "--applied", "-", "--reason", "x"), 2, "say one of"),
        (("--not-applied", "--token", "t-a"), 2, "--reason TEXT"),
        (("--not-applied", "--reason", "x"), 2, "without a terminal, give --token"),
        (("--not-applied", "--reason", "x", "--token", "t-b"), 1, "another request has begun"),
        (("--applied", "/nowhere", "--reason", "x", "--token", "t-a"), 1, "cannot be read"),
    ],
)
def test_refused(world: World, options: tuple[str, ...], status: int, said: str) -> None:
    """What is typed wrong or does not fit says nothing of the request, and how to do better."""
    request = begin(world, "a")
    result = world.cli("requests", "resolve", request, *options)
    assert result.exit_code == status
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert state_of(world, request)["state"] == "in doubt"


def test_held_by_somebody(world: World) -> None:
    """A request that somebody works on is not resolved."""
    request = begin(world, "a", hold=HOUR)
    words = ("requests", "resolve", request, "--not-applied", "--reason", "x", "--token", "t-a")
    result = world.cli(*words)
    assert result.exit_code == 1
    assert "still holds it" in result.stderr


GUARDED = GuardedRequest("k", "", "ann", b"", {"method": "POST", "path": "/payments"}).note


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"201 order 7",
        b'{"id": 7}',
        b'{"status": 99}',
        b"\xff",
        b'{"status": 201, "Body": "7"}',
    ],
)
def test_an_answer_that_no_client_could_get_is_not_taken(world: World, bad: bytes) -> None:
    """Of a request that came by HTTP: nothing is written, and what to write is shown. The template is an answer."""
    request = begin(world, "a", note=GUARDED)
    shown = world.cli("requests", "show", request).stdout
    assert TEMPLATE in shown
    assert TEMPLATE in " ".join(request_help(world).split())
    file = world.folder / "answer"
    file.write_bytes(bad)
    words = ("requests", "resolve", request, "--applied", str(file), "--reason", "x")
    refused = world.cli(*words, "--token", "t-a")
    assert refused.exit_code == 1
    assert "cannot be read" in refused.stderr and '"status": 201' in refused.stderr
    assert state_of(world, request)["state"] == "in doubt"
    file.write_text(TEMPLATE)
    assert world.cli(*words, "--token", "t-a").exit_code == 0
    assert state_of(world, request)["state"] == "done"


def request_help(world: World) -> str:
    """Return the help of `requests resolve`, without its frame."""
    text = world.cli("requests", "resolve", "--help").stdout
    return "".join(line.strip(" │").ljust(1) + " " for line in text.splitlines())


def test_an_unreadable_answer_of_an_operator_is_mended(world: World) -> None:
    """From code it can be written; `show` says so, and what to type. A readable one stands."""
    request = begin(world, "a", note=GUARDED)

    async def odd() -> None:
        async with outlast.connect(world.url) as client:
            await client.requests.resolve(
                request, answer=b"order 7", reason="from code", seen_token="t-a"
            )

    asyncio.run(odd())
    shown = world.cli("requests", "show", request).stdout
    assert "cannot be read" in shown and TEMPLATE in shown
    words = f"requests resolve {request} --token t-a --applied FILE --reason TEXT"
    assert words in shown
    file = world.folder / "answer"
    file.write_text(TEMPLATE)
    words = ("requests", "resolve", request, "--applied", str(file), "--token", "t-a", "--reason")
    assert world.cli(*words, "it was no JSON").exit_code == 0
    assert base64.b64decode(state_of(world, request)["answer"]) == TEMPLATE.encode()
    assert "resolve" not in world.cli("requests", "show", request).stdout.replace("resolved", "")
    file.write_text('{"status": 202}')
    again = world.cli(*words, "another")
    assert again.exit_code == 1 and "it is done" in again.stderr


def test_without_the_extra_no_answer_is_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could say whether a client could get it. That it did not happen can be said."""
    for name in [one for one in sys.modules if one.startswith("outlast.http")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "http_sf", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    request = begin(world, "a", note=GUARDED)
    file = world.folder / "answer"
    file.write_text(TEMPLATE)
    words = ("requests", "resolve", request, "--reason", "x", "--token", "t-a")
    refused = world.cli(*words, "--applied", str(file))
    assert refused.exit_code == 1
    assert "http_sf is missing" in refused.stderr
    assert state_of(world, request)["state"] == "in doubt"
    assert world.cli(*words, "--not-applied").exit_code == 0


def test_no_such_request(world: World) -> None:
    """A hash that is not there and one that is none are told apart."""
    missing = world.cli("requests", "show", "0" * 64)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "there is no request" in missing.stderr
    none = world.cli("requests", "show", "abc")
    assert none.exit_code == 2
    assert "all 64 digits" in " ".join(none.stderr.replace("│", " ").split())


def test_purge(world: World) -> None:
    """Nothing has expired, and that is said."""
    begin(world, "a", answer=b"201")
    assert "removed: 0 expired requests" in world.cli("requests", "purge").stdout


@pytest.mark.parametrize(("typed", "status", "state"), [("y", 0, "freed"), ("n", 1, "in doubt")])
def test_asked_at_a_terminal(world: World, typed: str, status: int, state: str) -> None:
    """Without a token the request is shown; `y` says it of exactly that one, anything else says nothing."""
    request = begin(world, "a")
    words = ("requests", "resolve", request, "--not-applied", "--reason", "x")
    with Terminal(world, *words) as terminal:
        terminal.read_until("[y/N]")
        assert "t-a" in terminal.shown
        assert "Say that exactly this did not happen?" in terminal.shown
        terminal.type(typed)
        assert terminal.end() == status
    assert state_of(world, request)["state"] == state


def test_one_that_is_not_in_doubt_is_not_asked_for(world: World) -> None:
    """It is shown as it is, and no question follows."""
    request = begin(world, "a", answer=b"201")
    words = ("requests", "resolve", request, "--not-applied", "--reason", "x")
    with Terminal(world, *words) as terminal:
        assert terminal.end() == 1
        assert "it is done" in terminal.shown
        assert "[y/N]" not in terminal.shown
