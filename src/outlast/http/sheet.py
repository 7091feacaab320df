"""A request as a page of HTML: plain text in a few elements, without script, form or link.

Invariant: whatever a run wrote stands in the page as text: escaped for HTML, and with every control and direction character written out.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import datetime
from html import escape
from string import Template
from typing import Any, cast

from outlast.client import ApprovalView
from outlast.client.text import ago, hidden_count, json_text, safe, typed

_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "pre{background:#f4f4f4;color:#111;overflow-x:auto;padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere}"
    "dt{font-weight:bold}dd{margin:0 0 .5rem;overflow-wrap:anywhere}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS = (
    ("content-type", "text/html; charset=utf-8"),
    (
        "content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-robots-tag", "noindex, nofollow, noarchive"),
)
"""Of every page: nothing is loaded, sent, framed, kept or passed on. The style is allowed by its hash."""

_PAGE = Template(
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f"<title>$title</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>$title</h1>\n$content</body>\n</html>\n"
)


def request_page(view: ApprovalView, tenant: str, now: datetime) -> bytes:
    """Return the page of a request, which has the hash under which it is asked."""
    return _page("A request for approval", "".join(_request(view, tenant, now)))


def no_page() -> bytes:
    """Return the page for every link that leads nowhere: over, forged, or of something else."""
    return _page(
        "Nothing to show", "<p>This link leads nowhere, or does not lead there any more.</p>\n"
    )


def broken_page() -> bytes:
    """Return the page of a request that is not what its hash says, or that cannot be read."""
    text = "What is stored of this request cannot be read, or is not what was asked. Decide nothing, and tell an operator."
    return _page("This request cannot be shown", f"<p>{text}</p>\n")


def _page(title: str, content: str) -> bytes:
    return _PAGE.substitute(title=title, content=content).encode()


def _request(view: ApprovalView, tenant: str, now: datetime) -> Iterator[str]:
    yield "<p>This page shows. It decides nothing, however often it is opened.</p>\n<dl>\n"
    yield _term("run", view.run_id)
    yield _term("request", view.approval_id)
    yield _term("state", f"{view.state} by {view.by}" if view.by else view.state)
    yield _term("role", view.role)
    yield _term("asked", ago(view.requested_at, now))
    yield _term("decide", f"before {ago(view.expires_at, now)}")
    yield _term("use", f"what is permitted begins before {ago(view.use_by, now)}")
    yield _term("sha256", view.subject_sha256)
    yield "</dl>\n"
    yield from _subject(view.subject["subject"])
    yield "<h2>What a yes permits</h2>\n"
    covers = [_cover(one) for one in view.subject["covers"]]
    yield _block("\n".join(covers) if covers else "nothing that is named here")
    if rest := {key: one for key, one in view.subject.items() if key not in ("subject", "covers")}:
        yield f"<h2>What else is hashed</h2>\n{_block(json_text(rest))}"
    if view.state == "pending":
        yield f"<h2>How to decide</h2>\n{_block(_command(view, tenant))}"


def _subject(shown: Any) -> Iterator[str]:
    fields = cast("dict[str, Any]", shown) if isinstance(shown, dict) else {}
    diff = fields.get("diff")
    is_apart = isinstance(diff, str) and bool(diff)
    yield "<h2>What the run wrote about it</h2>\n<p>These are its words, or those of a model, not Outlast's.</p>\n"
    yield _block(json_text({**fields, "diff": "(below)"} if is_apart else shown))
    if isinstance(diff, str) and diff:
        yield f"<h2>The diff</h2>\n{_block(safe(diff, lines=True))}"
        if hidden := hidden_count(diff):
            yield f"<p>Characters of it that are hidden from the eye, shown escaped: {hidden}</p>\n"


def _cover(cover: dict[str, Any]) -> str:
    fields = ", ".join(
        f"{safe(name)}={json_text(value, indent=None)}"
        for name, value in cover["arguments"].items()
    )
    kind = "this call, once" if cover["kind"] == "call" else "any one call with these fields"
    undo = f"; undone by {safe(str(cover['compensate']))}" if cover.get("compensate") else ""
    return f"{safe(str(cover['effect']))}({fields})  {kind}{undo}"


def _command(view: ApprovalView, tenant: str) -> str:
    options = [] if tenant == "default" else ["--tenant", tenant]
    return safe(typed(options, ["approvals", "show", view.run_id, view.approval_id]))


def _term(name: str, text: str) -> str:
    return f"<dt>{name}</dt><dd>{escape(safe(text))}</dd>\n"


def _block(text: str) -> str:
    # The first newline of a <pre> is not shown.
    return f"<pre>\n{escape(text)}</pre>\n"
