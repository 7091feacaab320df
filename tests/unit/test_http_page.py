"""What the page on the Idempotency-Key shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.http import problem
from outlast.http.policy import NEVER_GIVEN_AGAIN, REFUSALS, keeps_status

PAGE = (Path(__file__).parents[2] / "docs/http.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

ASK = """
import asyncio

import httpx


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with outlast.connect("sqlite:///shop.db", create=True) as client:

        async def within(scope, receive, send) -> None:
            await app({**scope, "state": {"outlast": client}}, receive, send)

        transport = httpx.ASGITransport(within)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            for _ in range(2):
                answer = await http.post("/payments", json={"amount": 5}, headers={"idempotency-key": '"a"'})
                print(answer.status_code, answer.text, answer.headers.get("idempotent-replayed"))
            print((await http.get("/idempotency")).json() == app.user_middleware[0].kwargs["policy"].describe())


asyncio.run(main())
"""


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """All Python of the page, in its order, is one application, which pays once."""
    blocks = [block for block in BLOCKS if "FastAPI(" not in block]
    assert len(blocks) == 3
    assert answers_of("\n\n".join(blocks), tmp_path) == [
        '201 {"payment":1} None',
        '201 {"payment":1} true',
        "True",
    ]


def test_the_program_in_fastapi_runs(tmp_path: Path) -> None:
    """It does the same, and its policy is there without a redirect."""
    (program,) = [block for block in BLOCKS if "FastAPI(" in block]
    answers = answers_of(program, tmp_path)
    assert answers == ['201 {"payment":1} None', '201 {"payment":1} true', "True"]


def answers_of(program: str, folder: Path) -> list[str]:
    """Run a program of the page, and return what it answers to `ASK`."""
    (folder / "shop.py").write_text(program + ASK)
    done = subprocess.run(
        [sys.executable, "-W", "error", "shop.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_table_has_every_refusal() -> None:
    """And nothing that is none."""
    assert set(problem.Code) == set(re.findall(r"\b[45]\d\d `(\w+)`", PAGE)) | {"handler_failed"}
    assert "`500 handler_failed`" in PAGE


@pytest.mark.parametrize("kept", ["yes", "no"])
def test_the_table_says_which_answers_are_kept(kept: str) -> None:
    """Each status of it; and of those that are not kept, it has all."""
    lines = PAGE.partition("| answer of the application |")[2].partition("\n\n")[0].splitlines()
    cells = [line.split("|")[1] for line in lines if f"| {kept} |" in line]
    statuses = {int(one) for one in re.findall(r"\b\d{3}\b", " ".join(cells))}
    assert statuses
    assert {keeps_status(one) for one in statuses} == {kept == "yes"}
    assert kept == "yes" or statuses == REFUSALS


def test_the_page_names_the_headers_that_are_not_given_again() -> None:
    """All of them."""
    told = PAGE.lower()
    assert all(name in told for name in NEVER_GIVEN_AGAIN - {"set-cookie2"})
