"""A handle on the forge double in its own process, for the demo and for tests.

Guards: the double ends when the handle is closed, and also when the process that holds the handle dies in any way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from outlast.demo.forge_state import FAULTS
from outlast.errors import OutlastError


class ForgeError(OutlastError):
    """The double does not start or does not answer."""

    code = "forge_double"


class ForgeProcess:
    """The double as a process. Use it as `with ForgeProcess.start(…) as forge`.

    Log and pull requests lie in `directory`; started again there, the double goes on with them.
    """

    def __init__(self, process: subprocess.Popen[bytes], url: str, directory: Path) -> None:
        self._process = process
        self.url = url
        self.directory = directory

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        repo: str,
        bare: Path,
        token: str = "",
        port: int = 0,
        faults: Iterable[dict[str, Any]] = (),
    ) -> ForgeProcess:
        """Start the double and wait until it listens.

        Args:
            directory: Where it keeps its log and its pull requests.
            repo: `owner/name` of the repository it knows.
            bare: The bare git repository that holds the branches.
            token: The only token it accepts; empty for any.

        Raises:
            ForgeError: It ended instead.
        """
        directory.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "outlast.demo.forge_double", "--repo", repo, "--repository-git", str(bare), "--token", token,
            "--port", str(port), "--log", str(directory / "requests.jsonl"), "--state", str(directory / "pulls.json"),
            "--until-stdin-closes",
        ]  # fmt: skip
        for fault in faults:
            command += ["--fault", json.dumps(fault)]
        forge = cls(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE), "", directory
        )
        assert forge._process.stdout is not None
        line = forge._process.stdout.readline()
        if not line:
            status = forge._process.wait()
            forge.stop()
            raise ForgeError(
                f"the forge double ended with status {status}",
                hint="read its own words on standard error",
            )
        forge.url = str(json.loads(line)["url"])
        return forge

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 that it listens on."""
        return httpx.URL(self.url).port or 0

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def __enter__(self) -> ForgeProcess:
        """Return the handle itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.stop()

    def stop(self) -> None:
        """End the process, if it lives, and wait for its end."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def order(
        self, fault: str, *, on: str = "create", times: int = 1, retry_after: int = 1
    ) -> None:
        """Order a fault: a name of `forge_state.FAULTS`, for the next `times` requests of a kind."""
        assert fault in FAULTS, fault
        self._control(
            "POST",
            "faults",
            json=[{"fault": fault, "on": on, "times": times, "retry_after": retry_after}],
        )

    def held(self, *, wait: int = 0) -> list[int]:
        """Return the numbers of the requests whose answers are held, after waiting up to `wait` seconds for a first."""
        state = self._control("GET", "state", params={"wait_held": wait}, timeout=wait + 10.0)
        return list(state["held"])

    def release(self) -> None:
        """Let go of the answers that are held."""
        self._control("POST", "release")

    def close_pull(self, number: int) -> None:
        """Close a pull request, as somebody else would."""
        self._control("POST", "close", params={"number": number})

    def pulls(self) -> list[dict[str, Any]]:
        """Return every pull request, oldest first; also when the process has died."""
        file = self.directory / "pulls.json"
        return json.loads(file.read_bytes()) if file.exists() else []

    def log(self) -> list[dict[str, Any]]:
        """Return every record of the log, oldest first; also when the process has died."""
        lines = (self.directory / "requests.jsonl").read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line]

    def requests(self, kind: str) -> list[dict[str, Any]]:
        """Return the logged requests of a kind: `create`, `list` or `get`."""
        return [each for each in self.log() if each["event"] == "request" and each["kind"] == kind]

    def create_requests(self) -> int:
        """Return how many requests to create a pull request came in, whatever became of them."""
        return len(self.requests("create"))

    def _control(self, method: str, name: str, *, timeout: float = 10.0, **rest: Any) -> Any:
        response = httpx.request(
            method, f"{self.url}/_double/{name}", timeout=timeout, trust_env=False, **rest
        )
        if response.status_code != 200:
            raise ForgeError(
                f"the forge double answered {response.status_code}: {response.text}",
                hint="correct the order",
            )
        return response.json()
