"""A link shows one request, to whoever opens it and however often, and changes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from outlast.client import Client
from outlast.errors import DefinitionError
from outlast.http import approvals
from outlast.notify.link import Links
from outlast.policy.authority import StoreAuthority
from outlast.testing import SeededRandom

from .approval_bench import KEY, Front, call

NASTY = '</pre><script>alert(1)</script><a href="https://evil.example">x</a>\u202e\x1b[2J&amp;'
_ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body"),
    *("h1", "h2", "p", "dl", "dt", "dd", "pre"),
}
_VOID = {"meta"}


class Strict(HTMLParser):
    """Reads a page, and fails over anything that is open, unknown or active."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        """Allow a few elements, and no attribute that acts."""
        assert tag in _ELEMENTS, tag
        for name, value in attrs:
            assert name in {"lang", "charset", "name", "content"}, name
            if "://" in (value or ""):
                self.links.append(value)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """Close what is open."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Note text."""
        self.text.append(data)

    def handle_comment(self, data):
        """Allow none."""
        raise AssertionError(data)


def read(page: bytes) -> Strict:
    """Parse a page strictly."""
    parser = Strict()
    parser.feed(page.decode())
    parser.close()
    assert parser.open == []
    return parser


def test_a_page_shows_what_is_asked() -> None:
    """Run, role, deadlines, hash, covers with their arguments, and the diff."""

    async def main() -> None:
        front = Front()
        run = await front.office.ask(subject={"title": "fix", "diff": "--- a\n+++ b\n+new\n"})
        reply = await call(front.app, "GET", front.link(run))
        assert reply.status == 200
        text = "".join(read(reply.body).text)
        row = await front.office.row(run)
        for part in (
            "run",
            "maintainer",
            "pending",
            "before 2026-03-01 13:00:00 UTC (in 1 hour)",
            row.put.subject_sha256,
            'open_pull_request(patch="secret-payload")  this call, once',
            "--- a\n+++ b\n+new",
            '"diff": "(below)"',
            "outlast approvals show run '1~r:1'",
        ):
            assert part in text, part
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["referrer-policy"] == "no-referrer"
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "form-action 'none'" in policy and "frame-ancestors 'none'" in policy

    asyncio.run(main())


def test_what_a_run_wrote_is_text() -> None:
    """No element, no link, no character that hides, wherever it stands."""

    async def main() -> None:
        cover = {"effect": NASTY, "kind": "call", "action_sha256": "a", "arguments": {NASTY: NASTY}}
        for subject in ({"t": NASTY, "diff": NASTY}, NASTY, [NASTY], None):
            front = Front()
            run = await front.office.ask(subject=subject, covers=[cover])
            page = (await call(front.app, "GET", front.link(run))).body
            text = "".join((parsed := read(page)).text)
            assert (
                not parsed.links
                and b"<script" not in page
                and b"href" not in page.split(b"&lt;a")[0]
            )
            assert "\u202e" not in text and "\x1b" not in text and "\\u202e" in text
            assert "</pre><script>alert(1)</script>" in text

    asyncio.run(main())


def test_scanners_decide_nothing() -> None:
    """They open every link again and again, follow all that the page holds, and try other methods: it waits as before."""

    async def main() -> None:
        front = Front()
        run = await front.office.ask()
        before = await front.office.store.load(run)
        link = front.link(run)
        for _ in range(5):
            page = await call(front.app, "GET", link)
            head = await call(front.app, "HEAD", link)
            assert (page.status, head.status, head.body) == (200, 200, b"")
            assert head.headers == page.headers
            assert int(head.headers["content-length"]) == len(page.body)
            assert read(page.body).links == []
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            reply = await call(front.app, method, link, b"approve=yes")
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
            reply = await call(front.app, method, f"{link}/approve")
            assert reply.status == 405
        assert (await call(front.app, "GET", f"{link}/approve")).status == 404
        assert await front.office.store.load(run) == before

    asyncio.run(main())


def test_links_that_lead_nowhere_look_alike() -> None:
    """Over, forged, of another tenant, another key, no such run or request: one page, and nothing to tell them by."""

    async def main() -> None:
        front = Front()
        run = await front.office.ask()
        other = await front.office.ask(tenant="acme")
        end = front.office.clock.now() + timedelta(hours=1)
        good = front.link(run)
        links = Links(KEY)
        pages = {
            (reply.status, tuple(reply.headers.items()), reply.body)
            for path in (
                front.link(run, hours=0),
                f"{good[:-2]}xx",
                "/",
                "/x",
                "/" + "x" * 100_000,
                front.link(other, tenant="acme"),
                f"/{Links('o' * 32).token('default', 'run', '1~r:1', end)}",
                f"/{links.token('default', 'nobody', '1~r:1', end)}",
                f"/{links.token('default', 'run', '1~r:9', end)}",
            )
            for reply in [await call(front.app, "GET", path)]
        }
        ((status, _, body),) = pages
        assert status == 404
        read(body)
        assert (await call(front.app, "GET", good)).status == 200
        front.office.clock.advance(timedelta(hours=1))
        assert (await call(front.app, "GET", good)).body == body

    asyncio.run(main())


def test_a_decided_request_is_shown_as_decided() -> None:
    """Until the link is over; nothing says how to decide any more."""

    async def main() -> None:
        front = Front()
        run = await front.office.ask()
        await front.office.deny(run)
        text = "".join(read((await call(front.app, "GET", front.link(run))).body).text)
        assert "denied by bob" in text and "outlast approvals" not in text

    asyncio.run(main())


def test_what_is_not_what_was_asked_is_not_shown() -> None:
    """A row whose subject has another hash."""

    async def main() -> None:
        front = Front()
        run = await front.office.ask()
        kept = front.office.store.runs[run].approvals
        row = kept["1~r:1"]
        kept["1~r:1"] = replace(row, put=replace(row.put, subject_sha256="b" * 64))
        reply = await call(front.app, "GET", front.link(run))
        assert reply.status == 500
        text = "".join(read(reply.body).text)
        assert "Decide nothing" in text and "urllib3" not in text

    asyncio.run(main())


def test_it_may_be_mounted() -> None:
    """At any path; with or without a sender there is no other one than those of links."""

    async def main() -> None:
        front = Front(senders=None)
        run = await front.office.ask()
        path = f"/a/b{front.link(run)}"
        assert (await call(front.app, "GET", path, root_path="/a/b")).status == 200
        assert (await call(front.app, "GET", path)).status == 404
        assert (await call(front.app, "POST", "/decisions")).status == 405
        assert (await call(front.app, "GET", "/decisions")).status == 404
        with pytest.raises(RuntimeError):
            await call(front.app, "GET", "/", type="websocket")

    asyncio.run(main())


def test_a_short_key_is_refused() -> None:
    """Before anything is served."""
    with pytest.raises(DefinitionError, match="32 characters"):
        approvals(Front().office.client, key="short")


def test_a_page_that_its_application_may_not_read_leads_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is as if there were none, and the log says why."""

    async def main() -> None:
        front = Front()
        run = await front.office.ask()
        store = front.office.store
        authority = StoreAuthority(store, "root")
        root, service = (
            Client(store, random=SeededRandom(who), principal=who, authority=authority)
            for who in ("root", "service")
        )
        await root.roles.grant("ann", "outlast:read")
        reply = await call(approvals(service, key=KEY), "GET", front.link(run))
        assert (reply.status, b"leads nowhere" in reply.body) == (404, True)
        assert "service may not read this run" in caplog.text
        reply = await call(approvals(root, key=KEY), "GET", front.link(run))
        assert reply.status == 200

    asyncio.run(main())
