"""Questions to a run from outside, answered by its own code from where it stands.

Invariant: a handler only reads. What would begin an operation or wake a task is refused before it has happened, and a machine whose
handler has tried is of no use any more: nobody can say what else it has changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import Context
from typing import Any

from msgspec import Struct

from outlast.errors import DecodeError, DefinitionError, EncodeError, QueryError
from outlast.journal.failure import capture
from outlast.replay.loop import Look, WorkflowLoop


class QueryHandler(Struct, frozen=True):
    """How one query is answered.

    Args:
        decode: Turns the question's JSON into what `call` takes.
        call: Answers; a plain function.
        encode: Turns the answer into JSON.
    """

    decode: Callable[[bytes], Any]
    call: Callable[[Any], Any]
    encode: Callable[[Any], bytes]


class Queries:
    """The queries that one run answers.

    Args:
        loop: The loop of the run.
        context: Where handlers run: they see the run as its workflow does.
        run_id: For messages.
    """

    def __init__(self, loop: WorkflowLoop, context: Context, run_id: str) -> None:
        self._loop = loop
        self._context = context
        self._run_id = run_id
        self._handlers: dict[str, QueryHandler] = {}

    def register(self, name: str, handler: QueryHandler) -> None:
        """Answer the queries of that name from now on.

        Raises:
            DefinitionError: They are answered already.
        """
        if name in self._handlers:
            raise DefinitionError(
                f"query {name!r} has a handler already",
                run=self._run_id,
                hint="register one handler for each query, once",
            )
        self._handlers[name] = handler

    def answer(self, name: str, value: bytes) -> bytes:
        """Return the answer as JSON. To be called from a plain callback, as turns are delivered.

        Args:
            value: The question's, as JSON.

        Raises:
            QueryError: Nobody answers it, the value or the answer does not fit, or the handler raised.
        """
        handler = self._handlers.get(name)
        if handler is None:
            known = ", ".join(map(repr, sorted(self._handlers))) or "no query at all"
            raise self._refused("unknown", f"the run does not answer it; it answers {known}")
        try:
            question = handler.decode(value)
        except DecodeError as error:
            raise self._refused("value", error.message) from error
        answer = self._call(handler, question)
        try:
            return handler.encode(answer)
        except EncodeError as error:
            raise self._refused("result", error.message) from error

    def _call(self, handler: QueryHandler, question: Any) -> Any:
        def call() -> Any:
            return self._context.copy().run(handler.call, question)

        look = Look("a query handler", "It only reads; send the run a signal.")
        try:
            answer = self._loop.read(call, look)
        except (Exception, SystemExit) as error:
            failure = capture(error)
            reason = "acts" if look.acted else "handler"
            raise self._refused(
                reason, f"its handler raised {failure.type}: {failure.message}"
            ) from error
        if look.acted:
            raise self._refused(
                "acts", "its handler tried to act, and went on when that was refused"
            )
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise self._refused("handler", "its handler returned something to be awaited")
        return answer

    def _refused(self, reason: str, why: str) -> QueryError:
        return QueryError(why, reason=reason, run=self._run_id, hint=_HINTS[reason])


_HINTS = {
    "unknown": "register it before the first await of the workflow: outlast.on_query(query, handler)",
    "value": "ask with a value of the query's type",
    "result": "return a value of the query's result type",
    "handler": "a query handler is a plain function that only reads what the workflow has noted",
    "acts": "a query handler only reads; to change something, send a signal",
}
