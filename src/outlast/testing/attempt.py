"""An attempt for the tests of a single body: what it asks of Outlast is answered without any run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from outlast.journal.codec import codec_of
from outlast.journal.parse import parse
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.carry import Errand, current_errand
from outlast.workflows.heartbeat import Beats, current_beats


@contextmanager
def attempt(  # noqa: PLR0913 - what a body can ask for
    *,
    key: str = "key",
    number: int = 1,
    name: str = "body",
    run_id: str = "run",
    details: Any = None,
    beats: list[Any] | None = None,
    undoes_key: str = "",
) -> Generator[Attempt]:
    """Let `outlast.idempotency_key()`, `outlast.attempt()` and the heartbeats work in a body that is called by itself.

    Args:
        key: What `outlast.idempotency_key()` returns, to a receiver that knows keys; empty for a step, which has none, and can be
            completed from outside.
        number: Of the attempt, from 1.
        details: What `outlast.heartbeat_details()` finds of a former attempt.
        undoes_key: Of a compensation: the key of what it undoes.
        beats: Receives the details of each `outlast.heartbeat()`, as plain data.

    Example:
        ```python
        import outlast
        from outlast.testing import attempt

        @outlast.effect(idempotent=True)
        def ship(item: str) -> str:
            outlast.heartbeat({"packed": item})
            return f"{item} under {outlast.idempotency_key()}"

        beats: list[dict[str, str]] = []
        with attempt(key="k1", beats=beats):
            assert ship.plain("lamp") == "lamp under k1"
        assert beats == [{"packed": "lamp"}]
        ```
    """
    made = Attempt(
        "default", run_id, "r:1", name, number, key, idempotent=bool(key), undoes_key=undoes_key
    )
    former = b"" if details is None else codec_of(details, where="details").encode(details)

    def heard() -> None:
        if beats is not None:
            beats.append(parse(collected.latest))

    collected = Beats(lambda: 0.0, former, heard)
    tokens = current_attempt.set(made), current_beats.set(collected)
    errand = current_errand.set(Errand(lambda: None, collected))
    try:
        yield made
    finally:
        current_errand.reset(errand)
        current_beats.reset(tokens[1])
        current_attempt.reset(tokens[0])
