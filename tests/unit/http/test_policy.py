"""The policy: refused when it cannot be, published as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from asgi_bench import policy, post, simulate
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import DefinitionError
from outlast.http import KeyFormat, PublishedPolicy, fingerprint_of
from outlast.http.request import GuardedRequest

TEXTS = st.text(max_size=6)


@pytest.mark.parametrize(
    "fields",
    [
        {"keep": timedelta(0)},
        {"keep": 3600},
        {"hold": timedelta(days=-1)},
        {"hold": timedelta(days=99_999)},
        {"wait": timedelta(seconds=-1)},
        {"retry_after": timedelta(0)},
        {"largest_body_bytes": 0},
        {"largest_answer_bytes": 64 * 1024 * 1024},
        {"methods": frozenset()},
        {"methods": "POST"},
        {"link": "https://a/b c"},
        {"link": 'https://a/">; rel="x'},
        {"link": "https://é"},
        {"on_doubt": "repeat"},
        {"methods": {""}},
        {"methods": [1]},
        {"methods": None},
        {"required": "no"},
        {"keeps": True},
        {"keeps_header": None},
        {"fingerprint": None},
        {"tenant": "x"},
        {"principal": "ann"},
        {"format": "x"},
        {"link": None},
        {"hold": timedelta(days=2)},
        {"largest_body_bytes": "5"},
        {"largest_answer_bytes": True},
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    """When the policy is made; the error says what to give."""
    with pytest.raises(DefinitionError) as refused:
        policy(**fields)
    assert refused.value.hint


@pytest.mark.parametrize("name", ["principal", "tenant", "fingerprint", "keeps", "keeps_header"])
def test_what_is_called_has_to_be_callable(name: str) -> None:
    """A principal that is a name, say, is refused where it is written, and not with each request."""
    with pytest.raises(DefinitionError, match=f"{name}='ann'") as refused:
        policy(**{name: "ann"})
    assert refused.value.hint.startswith("give one, as ")


def test_there_is_no_policy_without_a_principal() -> None:
    """None is safe by default: whoever leaves it out would hand one client's answers to the next."""
    from outlast.http import IdempotencyPolicy

    with pytest.raises(TypeError, match="principal"):
        IdempotencyPolicy()  # type: ignore[call-arg]


def test_the_policy_says_what_the_draft_demands() -> None:
    """Format, length, expiry, the operations that need a key; and what is kept."""
    made = policy(
        methods=frozenset({"post", "PUT"}),
        required=False,
        keep=timedelta(days=2),
        format=KeyFormat(shortest=8, longest=64, pattern="[a-z0-9-]+", lenient=True),
        link="https://api.example.com/docs",
        keeps=lambda status: status not in {429, 503},
        largest_body_bytes=1000,
        largest_answer_bytes=2000,
    )
    assert made.describe() == {
        "header": "Idempotency-Key",
        "required": False,
        "methods": ["POST", "PUT"],
        "format": {
            "type": "string, quoted or bare",
            "shortest": 8,
            "longest": 64,
            "pattern": "[a-z0-9-]+",
        },
        "expires_after_seconds": 172_800,
        "largest_body_bytes": 1000,
        "largest_answer_bytes": 2000,
        "answers_not_kept": [429, 503],
        "replayed_header": "Idempotent-Replayed",
        "documentation": "https://api.example.com/docs",
    }


def test_the_policy_is_served() -> None:
    """To GET and HEAD; it cannot be changed from outside."""

    async def main(clock) -> None:
        page = PublishedPolicy(policy())
        got = await post(page, method="GET", key=None)
        assert got.json == policy().describe()
        assert got.header("content-type") == "application/json"
        refused = await post(page, method="POST")
        assert (refused.status, refused.header("allow")) == (405, "GET, HEAD")
        with pytest.raises(RuntimeError, match="websocket"):
            await page({"type": "websocket"}, None, None)

    simulate(main)


@given(st.tuples(TEXTS, TEXTS, TEXTS), st.tuples(TEXTS, TEXTS, TEXTS))
def test_no_two_owners_of_a_key_are_taken_for_one(one: tuple, other: tuple) -> None:
    """Whatever is in the names of tenants and principals, and in keys."""

    def composite(parts: tuple[str, str, str]) -> str:
        tenant, principal, key = parts
        return GuardedRequest(key, tenant, principal, b"", {}).composite_key

    assert (composite(one) == composite(other)) == (one == other)
    assert json.loads(composite(one))[1:] == list(one)
    assert "\0" not in composite(one) and composite(one).isascii()


REQUESTS = st.tuples(
    st.sampled_from(["POST", "PATCH"]), TEXTS, st.binary(max_size=4), st.binary(max_size=4)
)


@given(REQUESTS, REQUESTS)
def test_no_two_requests_have_one_fingerprint(one: tuple, other: tuple) -> None:
    """No part runs into the next."""

    def fingerprint(parts: tuple[str, str, bytes, bytes]) -> str:
        method, path, query, body = parts
        return fingerprint_of({"method": method, "path": path, "query_string": query}, body)

    assert (fingerprint(one) == fingerprint(other)) == (one == other)


BLOCKED = """
import sys
for name in {names}:
    sys.modules[name] = None
try:
    import outlast.http
except ModuleNotFoundError as error:
    print(error)
else:
    print(sorted(outlast.http.__all__)[0])
"""


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["httpx", "starlette", "fastapi", "litestar"], "Answer"),
        (["http_sf"], "outlast.http needs http-sf: in a clone of Outlast, pip install '.[http]'"),
    ],
)
def test_what_the_server_side_needs(names: list[str], said: str) -> None:
    """No framework and no client; and what it does need it names."""
    code = BLOCKED.format(names=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


@pytest.mark.parametrize("module", ["transport", "carry"])
def test_what_the_client_side_needs(module: str) -> None:
    """Whichever of its modules is imported names it."""
    code = BLOCKED.format(names=["httpx"]).replace("outlast.http\n", f"outlast.http.{module}\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        "needs httpx; install the extra: in a clone of Outlast, pip install '.[http]'"
        in done.stdout
    )
