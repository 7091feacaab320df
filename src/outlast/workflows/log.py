"""Logging that knows its run: silent while workflow code is replayed, and with fields that say whose line it is.

A line of workflow code is said when the code comes there for the first time, and not when it comes there again because its run was
taken out of memory, handed to another worker, forked or asked. Values and arguments are in no field.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from outlast.replay.context import current_context
from outlast.store.change import RunKey
from outlast.workflows.attempt import current_attempt

FIELDS = ("worker", "tenant", "run", "workflow", "operation", "step", "attempt")
"""Attributes that a record has where they are known, in the order in which they are written."""

about: ContextVar[Mapping[str, Any]] = ContextVar("outlast_about")
"""What a worker is doing: fields of each line that it says meanwhile."""

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


def fields_of_here() -> dict[str, Any]:
    """Return the fields of whatever runs here: of a worker's task, of workflow code, of an attempt."""
    found: dict[str, Any] = dict(about.get({}))
    inside = current_context.get(None)
    if inside is not None:
        run = inside.info()
        found.update(tenant=run.tenant, run=run.run_id, workflow=run.workflow)
    attempt = current_attempt.get(None)
    if attempt is not None:
        found.update(
            tenant=attempt.tenant,
            run=attempt.run_id,
            operation=attempt.operation,
            step=attempt.name,
            attempt=attempt.number,
        )
    return found


class RunFields(logging.Filter):
    """Drops nothing; gives each record the fields that are known and that it does not have. On a handler: also to lines of others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Give the record its fields."""
        found = fields_of_here()
        if isinstance(record.args, tuple):
            for value in record.args:
                if isinstance(value, RunKey):
                    found.update(tenant=value.tenant, run=value.run_id)
                    break
        for name, value in found.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


for _name in ("", ".worker", ".client", ".http", ".notify", ".store"):
    logging.getLogger(f"outlast{_name}").addFilter(RunFields())


class RunLogger(_Adapter):
    """What `outlast.logger` returns: a `logging.LoggerAdapter`."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the standard library's name
        """Return whether a line of this level would be said here and now."""
        inside = current_context.get(None)
        return (inside is None or inside.is_heard) and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the fields; what the caller gives as `extra` wins."""
        kwargs["extra"] = {**fields_of_here(), **(kwargs.get("extra") or {})}
        return msg, kwargs


def logger(name: str) -> RunLogger:
    """Return a logger for workflow code: silent in replay, and with fields that name the run. In a step, and anywhere else, it logs as any does.

    A line is said once, however often its run leaves memory and is taken up again. It may be missing, or said twice, where the worker died
    at that moment. Queries, and what cleans up when a run leaves memory, say nothing.

    Args:
        name: Of the logger of `logging` that says the lines; usually `__name__`.

    Example:
        ```python
        import outlast

        log = outlast.logger(__name__)

        @outlast.workflow
        async def greet(name: str) -> str:
            log.info("a guest has come")  # with the fields `tenant`, `run` and `workflow`
            return f"hello {name}"

        async with outlast.open("memory://") as app:
            assert await app.run(greet("Ada"), id="greet-ada") == "hello Ada"
        ```
    """
    return RunLogger(logging.getLogger(name))
