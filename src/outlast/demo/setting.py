"""Where the agent's steps find the world: in the environment, so that a worker started anew finds the same one.

Also the tally: each body says when it began and ended, in a file that outlives every process.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.demo.model import DeterministicPlanner, HostedModel, Model

DIRECTORY = "OUTLAST_DEMO_DIRECTORY"
FORGE_URL = "OUTLAST_DEMO_FORGE_URL"
TOKEN = "OUTLAST_DEMO_TOKEN"  # noqa: S105 - the variable's name
PROBE = "OUTLAST_DEMO_PROBE"
MODEL_URL = "OUTLAST_DEMO_MODEL_URL"
MODEL_NAME = "OUTLAST_DEMO_MODEL"
MODEL_KEY = "OUTLAST_DEMO_MODEL_KEY"


@dataclass(frozen=True, slots=True)
class Setting:
    """The world of one demo.

    Args:
        directory: Holds everything: database, remote, tally, record.
        forge_url: The API of the forge.
        token: For the forge.
        probe: Whether the probe really asks; off, it claims that nothing happened.
    """

    directory: Path
    forge_url: str
    token: str
    probe: bool = True

    @classmethod
    def from_environment(cls) -> Setting:
        """Return the setting that this process was started with."""
        return cls(
            directory=Path(os.environ[DIRECTORY]),
            forge_url=os.environ[FORGE_URL],
            token=os.environ[TOKEN],
            probe=os.environ.get(PROBE, "on") != "off",
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that give another process this setting."""
        return {
            DIRECTORY: str(self.directory),
            FORGE_URL: self.forge_url,
            TOKEN: self.token,
            PROBE: "on" if self.probe else "off",
        }

    @property
    def model(self) -> Model:
        """The planner: a hosted model where the environment names one."""
        if os.environ.get(MODEL_URL):
            key = MODEL_KEY if os.environ.get(MODEL_KEY) else ""
            return HostedModel.from_environment(url=MODEL_URL, model=MODEL_NAME, key=key)
        return DeterministicPlanner()

    @contextlib.contextmanager
    def body(self, name: str) -> Generator[None]:
        """Write down that a body ran in this process, and how long it took."""
        began = time.monotonic()
        self._tally(name, "began", 0.0)
        try:
            yield
        finally:
            self._tally(name, "ended", time.monotonic() - began)

    def _tally(self, name: str, event: str, seconds: float) -> None:
        line = {"body": name, "event": event, "pid": os.getpid(), "seconds": round(seconds, 3)}
        with self.tally.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @property
    def tally(self) -> Path:
        """The file of the tally: one JSON object a line."""
        return self.directory / "bodies.jsonl"

    @property
    def record(self) -> Path:
        """The file of the last step's record."""
        return self.directory / "outcome.json"

    def bodies(self) -> list[dict[str, Any]]:
        """Return the tally."""
        lines = self.tally.read_text().splitlines() if self.tally.exists() else []
        return [json.loads(line) for line in lines]
