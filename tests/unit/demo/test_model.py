"""Planners propose; the record decides."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from outlast.demo.manifest import PackageNotInManifestError
from outlast.demo.model import (
    DeterministicPlanner,
    HostedModel,
    ModelError,
    PlanProposal,
    PlanRequest,
    ProposalRefusedError,
    accept,
    make_plan,
)
from outlast.demo.osv import Record
from outlast.demo.patch import Finding

pytestmark = pytest.mark.filterwarnings("error")
ASK = PlanRequest("X-1", "thing", "1.0", ("2.0", "3.0"), "summary", "details")


class Endpoint(ThreadingHTTPServer):
    """A double of a chat-completions endpoint: says what it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EndpointHandler)
        self.status, self.body = 200, b""
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def say(self, text: str) -> None:
        """Answer with a completion of this text."""
        self.body = json.dumps(
            {
                "id": "c-1",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}],
            }
        ).encode()


class EndpointHandler(BaseHTTPRequestHandler):
    """Answers as the endpoint says."""

    server: Endpoint

    def do_POST(self) -> None:
        """Keep the question, send the answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """The endpoint, and the environment that names it."""
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("TEST_MODEL_URL", server.url)
        monkeypatch.setenv("TEST_MODEL_NAME", "m-1")
        monkeypatch.setenv("TEST_MODEL_KEY", "sk-secret")
        yield server
        server.shutdown()
        thread.join()


def hosted() -> HostedModel:
    """Return the model that the environment describes."""
    return HostedModel.from_environment(
        url="TEST_MODEL_URL", model="TEST_MODEL_NAME", key="TEST_MODEL_KEY"
    )


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only."""
    return "asyncio"


@pytest.mark.anyio
async def test_the_default_takes_the_lowest_fix() -> None:
    """No key, no network, no text."""
    assert await DeterministicPlanner().propose(ASK) == PlanProposal("2.0")


@pytest.mark.anyio
async def test_plan_from_the_shipped_finding(finding: Finding, tmp_path: Path) -> None:
    """Finding and sample give the plan that the demo shows."""
    plan = await make_plan(finding, tmp_path / "copy", DeterministicPlanner())
    assert (plan.package, plan.from_version, plan.to_version) == (
        "langgraph-checkpoint",
        "2.1.1",
        "3.0.0",
    )
    assert (plan.planned_by, plan.rationale, plan.manifests) == ("", "", ("requirements.txt",))


@pytest.mark.anyio
async def test_package_that_the_repository_does_not_use(
    finding: Finding, tmp_path: Path, record: Record
) -> None:
    """A finding about something else ends before any model is asked."""
    affected = record.affected[0]
    other = type(record)(
        record.id, (type(affected)(type(affected.package)("PyPI", "unused"), affected.ranges),)
    )
    with pytest.raises(PackageNotInManifestError):
        await make_plan(
            Finding(other, finding.repo, finding.remote), tmp_path / "copy", DeterministicPlanner()
        )


@pytest.mark.anyio
async def test_a_hosted_model_is_asked_and_marked(
    endpoint: Endpoint, finding: Finding, tmp_path: Path
) -> None:
    """Its version is taken, its words are kept under its name; the key is in the header and nowhere else."""
    endpoint.say('```json\n{"version": "3.0", "rationale": " Because. "}\n```')
    plan = await make_plan(finding, tmp_path / "copy", hosted())
    assert (plan.to_version, plan.planned_by, plan.rationale) == ("3.0", "m-1", "Because.")
    path, authorization, question = endpoint.asked[0]
    assert (path, authorization, question["model"]) == (
        "/v1/chat/completions",
        "Bearer sk-secret",
        "m-1",
    )
    told = json.loads(question["messages"][1]["content"])
    assert (told["package"], told["current"], told["candidates"]) == (
        "langgraph-checkpoint",
        "2.1.1",
        ["3.0.0"],
    )
    assert "sk-secret" not in repr(hosted())


@pytest.mark.anyio
@pytest.mark.parametrize(
    "version", ["2.1.2", "3.0.1", "99", "2.1.1", "latest", "3.0.0; rm", "", "1" * 5_000]
)
async def test_a_version_outside_the_record_is_refused(
    endpoint: Endpoint, finding: Finding, tmp_path: Path, version: str
) -> None:
    """Affected, unpublished, unreadable: none of it becomes a plan."""
    endpoint.say(json.dumps({"version": version}))
    with pytest.raises(ProposalRefusedError, match=r"published fixes: 3\.0\.0"):
        await make_plan(finding, tmp_path / "copy", hosted())


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": "3.0.0"}}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
async def test_an_unreadable_answer_is_an_error(endpoint: Endpoint, body: bytes) -> None:
    """What is not the JSON that was asked for is never guessed at."""
    endpoint.body = body
    with pytest.raises(ModelError, match="not the JSON"):
        await hosted().propose(ASK)


@pytest.mark.anyio
async def test_a_refusing_endpoint_is_an_error_without_the_key(endpoint: Endpoint) -> None:
    """The status is told; the body, which may repeat the key, is not."""
    endpoint.status, endpoint.body = 401, b"bad key sk-secret"
    with pytest.raises(ModelError, match="answered 401") as caught:
        await hosted().propose(ASK)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.anyio
async def test_missing_variables_are_named(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which variable to set."""
    monkeypatch.delenv("TEST_MODEL_KEY")
    with pytest.raises(ModelError, match="TEST_MODEL_KEY"):
        await hosted().propose(ASK)
    monkeypatch.delenv("TEST_MODEL_URL")
    with pytest.raises(ModelError, match="TEST_MODEL_URL"):
        hosted()


def test_accept_returns_the_version(record: Record) -> None:
    """The spelling may differ; the version may not."""
    assert str(accept(PlanProposal("v3.0.0"), record, "langgraph-checkpoint", "2.1.1")) == "3.0.0"


@pytest.mark.anyio
async def test_a_long_answer_is_not_read_to_its_end(endpoint: Endpoint) -> None:
    """An answer over the limit is an error, and a packed one is not unpacked."""
    endpoint.say(json.dumps({"version": "2.0", "rationale": "x" * 1_000_000}))
    with pytest.raises(ModelError, match="longer than 1000000 bytes"):
        await hosted().propose(ASK)
    endpoint.say(json.dumps({"version": "2.0"}))
    endpoint.headers, endpoint.body = {"Content-Encoding": "gzip"}, gzip.compress(endpoint.body)
    with pytest.raises(ModelError, match="not the JSON"):
        await hosted().propose(ASK)


@pytest.mark.parametrize("url", ["http://api.example.com/v1", "HTTP://127.0.0.1.example.com", "x"])
def test_a_key_is_not_sent_in_the_clear(url: str) -> None:
    """Plain http takes a key to loopback alone; without a key it may lead anywhere."""
    with pytest.raises(ModelError, match="in the clear"):
        HostedModel(url, "m-1", "TEST_MODEL_KEY")
    HostedModel(url, "m-1")
    HostedModel("https://api.example.com/v1", "m-1", "TEST_MODEL_KEY")
    HostedModel("http://[::1]:8000/v1", "m-1", "TEST_MODEL_KEY")
    with pytest.raises(ModelError, match="no URL"):
        HostedModel("http://a:b", "m-1")
