"""What people read says who asks what, until when and how to decide; and what a run wrote becomes nothing but quoted text."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from outlast.journal.asking import Terms
from outlast.notify.message import message_of, notice_id

from .notify_bench import HOUR, Office

NASTY = "@everyone <!here> https://evil.example/approve\n| forged\n\u202egnp.exe\x1b[2J"


async def body_of(show: str = "summary", link: str = "", **fields) -> str:
    """Return the body of a message about a request."""
    office = Office()
    run = await office.ask(**fields)
    return message_of(await office.due(run), show, link, office.clock.now()).body


async def test_a_message_says_what_is_needed() -> None:
    """Workflow, run, role, deadline, hash, effects, and what to type."""
    office = Office()
    run = await office.ask()
    text = message_of(await office.due(run), "summary", "", office.clock.now())
    digest = (await office.row(run)).put.subject_sha256
    assert text.title == "maintainer: an approval waits in run run"
    for part in (
        "Workflow fix, run run, asks for a yes.",
        "role      maintainer",
        "decide    before 2026-03-01 13:00:00 UTC (in 1 hour)",
        f"sha256    {digest[:12]}…",
        "  open_pull_request\n",
        '| {"title": "raise urllib3 to 2.6.3"}',
        "outlast approvals approve run '1~r:1'",
        "outlast approvals deny run '1~r:1'",
    ):
        assert part in text.body, part
    assert digest[:13] not in text.body
    assert "http" not in text.body
    assert "votes" not in text.body and "who " not in text.body


async def test_terms_are_said() -> None:
    """How many are missing, and who may not."""
    terms = Terms("maintainer", HOUR, quorum=2, four_eyes=True)
    body = await body_of(terms=terms)
    assert "votes     0 of 2" in body and "not whoever started the run" in body


async def test_how_much_is_shown() -> None:
    """Arguments only in full; of the subject its beginning; or nothing of either."""
    subject = {"text": "x" * 500}
    summary, full, nothing = [
        await body_of(one, subject=subject) for one in ("summary", "full", "nothing")
    ]
    assert "secret-payload" not in summary and "x" * 180 in summary and "x" * 200 not in summary
    assert "secret-payload" in full and "x" * 500 in full
    assert (
        "xx" not in nothing and "open_pull_request" not in nothing and "approvals show" in nothing
    )


async def test_a_message_is_bounded() -> None:
    """However much is asked."""
    cover = {"effect": "e", "kind": "call", "action_sha256": "a", "arguments": {"t": "y" * 15_000}}
    body = await body_of("full", subject="x" * 15_000, covers=[cover] * 21)
    assert len(body) < 20 * 11_000 + 11_000
    assert "and 1 more" in body


@pytest.mark.parametrize("show", ["summary", "full"])
async def test_what_a_run_wrote_is_quoted_text(show: str) -> None:
    """No link, no mention, no line of ours, nothing that hides."""
    cover = {"effect": NASTY, "kind": "call", "action_sha256": "a", "arguments": {NASTY: NASTY}}
    body = await body_of(show, subject={"title": NASTY}, covers=[cover])
    assert "@everyone" not in body and "<!here>" not in body and "https://" not in body
    assert "\u202e" not in body and "\x1b" not in body and "\\u202e" in body
    lines = body.split("\n")
    ours = lines.index("What the run wrote about it (its words, not Outlast's):")
    quoted = lines[ours + 1 : lines.index("", ours)]
    assert quoted and all(line.startswith("| ") for line in quoted)
    assert "| forged" not in lines


@pytest.mark.parametrize("show", ["summary", "full", "nothing"])
async def test_names_are_inert_too(show: str) -> None:
    """The id of a run comes from an event, which somebody else may have made."""
    office = Office()
    run = await office.ask("pay:<!here>@all")
    text = message_of(await office.due(run), show, "", office.clock.now())
    assert "<!here>" not in text.title and "@all" not in text.title
    assert "run pay:\\u003c!here\\u003e\\u0040all, asks" in text.body


async def test_a_link_is_said_to_decide_nothing() -> None:
    """And it stands alone in its line."""
    body = await body_of(link="https://x.example/token")
    assert "It decides nothing, whoever opens it:\nhttps://x.example/token\n" in body


@pytest.mark.parametrize(
    ("again", "begin", "sentence"),
    [
        ("escalated", "Escalated to maintainer:", "did not decide in time"),
        ("edited", "Asked again: maintainer:", "was closed: edited"),
    ],
)
async def test_why_it_comes(again: str, begin: str, sentence: str) -> None:
    """A request that follows another one says so."""
    office = Office()
    run = await office.ask(again=again)
    text = message_of(await office.due(run), "summary", "", office.clock.now())
    assert text.title.startswith(begin) and sentence in text.body


async def test_a_reminder_and_a_question_say_so() -> None:
    """A question is answered and not approved."""
    office = Office()
    run = await office.ask(kind="question")
    text = message_of(await office.due(run, "reminder-1"), "summary", "", office.clock.now())
    assert text.title == "Reminder: maintainer: a question waits in run run"
    assert "approvals answer" in text.body and "approvals approve" not in text.body


async def test_another_tenant_is_named_in_what_is_typed() -> None:
    """The default one is not."""
    office = Office()
    run = await office.ask(tenant="acme")
    body = message_of(await office.due(run), "summary", "", office.clock.now()).body
    assert "outlast --tenant acme approvals show run" in body


@pytest.mark.parametrize("change", [{"body": b"{"}, {"subject_sha256": "b" * 64}])
async def test_what_is_not_what_was_asked_is_not_shown(change) -> None:
    """A body that cannot be read, or has another hash, says that nothing is to be decided."""
    office = Office()
    run = await office.ask()
    due = await office.due(run)
    bad = replace(due, asked=replace(due.asked, put=replace(due.asked.put, **change)))
    body = message_of(bad, "full", "", office.clock.now() + timedelta(minutes=1)).body
    assert "decide nothing" in body and "urllib3" not in body


async def test_ids_of_notices_differ_by_all_that_names_them() -> None:
    """Tenant, run, generation, request and which time it is."""
    office = Office()
    notice = (await office.due(await office.ask())).notice
    others = [
        replace(notice, **{name: value})
        for name, value in (
            ("tenant", "t"),
            ("run_id", "r"),
            ("generation", 2),
            ("approval_id", "a"),
            ("notice", "reminder-1"),
        )
    ]
    assert len({notice_id(one) for one in (notice, *others)}) == 6
    assert notice_id(replace(notice, tries=7)) == notice_id(notice)
