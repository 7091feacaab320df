"""A run of the machine whose journal a test writes."""

# ruff: noqa: D102

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw

from outlast.journal.entry import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Completed,
    EffectCompleted,
    EffectFailed,
    EffectIntended,
    Failed,
    MessageReceived,
    Started,
    StepCompleted,
    StepFailed,
    Taken,
    TimerFired,
    UpdateReceived,
)
from outlast.journal.failure import capture
from outlast.replay.command import (
    AnswerUpdate,
    AwaitDecision,
    IntendEffect,
    RequestApproval,
)
from outlast.replay.machine import Machine

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Body:
    """A workflow of any coroutine function; its result is stored as JSON."""

    name = "body"

    def __init__(self, function: Any):
        self.function = function

    def start(self, arguments: bytes) -> Any:
        return self.function()

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, default=str).encode()


class Run:
    """A machine with a journal that a test writes."""

    def __init__(self, program: Any, arguments: bytes = b"{}"):
        self.program = program if hasattr(program, "encode") else Body(program)
        self.machine = Machine(self.program, tenant="default", run_id="run-1")
        self.now = EPOCH
        self.journal: list[tuple[list[Any], datetime]] = []
        self.serial = 0
        self.deliver(Started("body", Raw(arguments), b"0123456789abcdef", "run-1"))
        self.deliver(Taken("3.11", "0"))

    def deliver(self, *turn: Any) -> None:
        self.journal.append((list(turn), self.now))
        self.machine.deliver(turn, self.now)

    def commands(self) -> list[Any]:
        return self.machine.take_commands()

    def command(self) -> Any:
        [command] = self.machine.take_commands()
        return command

    def name(self, operation: str) -> str:
        return self.machine.find(operation).request.name

    def done(self, operation: str, value: Any = None) -> None:
        kind = (
            StepCompleted
            if type(self.machine.find(operation)).__name__ == "StepOperation"
            else EffectCompleted
        )
        self.deliver(kind(operation, self.name(operation), Raw(json.dumps(value).encode())))

    def failed(self, operation: str, error: BaseException) -> None:
        kind = (
            StepFailed
            if type(self.machine.find(operation)).__name__ == "StepOperation"
            else EffectFailed
        )
        self.deliver(kind(operation, self.name(operation), capture(error)))

    def intend(self, command: IntendEffect, *, effective: bytes = b"") -> None:
        raw = Raw(command.arguments)
        self.deliver(
            EffectIntended(
                command.operation,
                command.name,
                "key",
                raw,
                Raw(effective) if effective else raw,
                command.action_sha256,
                command.number,
            )
        )

    def fire(self, operation: str) -> None:
        self.deliver(TimerFired(operation))

    def message(self, name: str, value: Any) -> MessageReceived:
        self.serial += 1
        return MessageReceived(f"m{self.serial}", name, Raw(json.dumps(value).encode()))

    def update(self, name: str, value: Any) -> UpdateReceived:
        self.serial += 1
        return UpdateReceived(f"u{self.serial}", name, Raw(json.dumps(value).encode()))

    def answers(self) -> dict[str, Any]:
        """Record the answers that are given now; return them by the place of their message, other commands stay out."""
        given = [one for one in self.commands() if isinstance(one, AnswerUpdate)]
        for one in given:
            self.deliver(one.answer)
        return {one.operation: said(one.answer) for one in given}

    def request(self, command: RequestApproval) -> AwaitDecision:
        self.deliver(
            ApprovalRequested(
                command.operation,
                command.approval_id,
                command.terms.role,
                command.subject,
                command.subject_sha256,
                command.covers,
                *command.terms.deadlines(0, self.now),
            )  # fmt: skip
        )
        return self.command()

    def decide(self, command: RequestApproval, *, approved: bool = True) -> None:
        self.deliver(
            ApprovalDecided(
                command.operation,
                command.approval_id,
                approved,
                "ann",
                "why",
                command.subject_sha256,
                self.now,
            )
        )

    def cancel(self) -> None:
        self.deliver(CancelRequested())

    def result(self) -> Any:
        """Return the value that the run returned."""
        outcome = self.machine.outcome
        assert isinstance(outcome, Completed), outcome
        return json.loads(bytes(outcome.value))

    def failure(self) -> Any:
        outcome = self.machine.outcome
        assert isinstance(outcome, Failed), outcome
        return outcome.failure

    def again(self, program: Any = None) -> Run:
        """Return a replay of the journal, under other code if given."""
        run = Run.__new__(Run)
        run.program = (
            self.program
            if program is None
            else program
            if hasattr(program, "encode")
            else Body(program)
        )
        run.machine = Machine(run.program, tenant="default", run_id="run-1")
        run.now, run.journal, run.serial = self.now, list(self.journal), self.serial
        for turn, at in self.journal:
            run.machine.deliver(turn, at)
        return run


def said(answer: Any) -> Any:
    """Return the value of an answer, or in which way there is none, with type and text of the failure."""
    if answer.failure is None:
        return json.loads(bytes(answer.value))
    word = "rejected" if answer.rejected else "cancelled" if answer.cancelled else "failed"
    return word, answer.failure.type.rpartition(".")[2], answer.failure.message


@pytest.fixture
def drive() -> type[Run]:
    """Begin a run of a coroutine function, or of a program."""
    return Run
