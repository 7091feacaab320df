"""Always-replay: after each turn that a live run gets, its whole journal is replayed, and both must stand the same. For tests.

A run and its replay are one computation, or the run is lost at its next restart. This finds out at once, where a restart would
have found out one day. It costs the square of a run's length, and nothing where it is off.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from outlast.errors import NonDeterminismError
from outlast.replay.delivery import Turn
from outlast.replay.machine import Machine
from outlast.replay.stand import Commands, Difference, Stand, differences, note_commands, stand_of

ALWAYS_REPLAY_VARIABLE = "OUTLAST_ALWAYS_REPLAY"
"""Set to `1`, it switches always-replay on for every worker of the process that does not say otherwise."""

listeners: list[Callable[[NonDeterminismError], None]] = []
"""The last one is told of each difference in this process, before the run is blocked for it."""

_SHOWN = 3
_MOST_TEXT = 1000
_HINT = (
    "the workflow decides by something that the journal does not hold: a module's variable, a counter or cache that runs share, a "
    "clock or randomness of its own, the order of a set, clean-up that changes what others read; return it from a step, pass it as "
    "an argument, or use outlast.now(), outlast.random() and sorted()"
)


def is_always_replay_set() -> bool:
    """Return whether the environment asks for it."""
    return os.environ.get(ALWAYS_REPLAY_VARIABLE) == "1"


class AlwaysReplay:
    """Follows one run; a `TurnCheck`.

    Args:
        machine: The live one: looked at, never touched.
        fresh: Makes another machine for the same run.
        run_id: For messages.
    """

    def __init__(self, machine: Machine, fresh: Callable[[], Machine], run_id: str) -> None:
        self._machine = machine
        self._fresh = fresh
        self._run_id = run_id
        self._turns: list[tuple[Turn, bool]] = []
        self._commands: Commands = {}

    def __call__(self, turn: Turn, *, compare: bool, more: bool = False) -> None:
        """Remember a turn that was delivered; then replay all of them and compare.

        The replay begins and ends within this call, in the plain callback that delivers: nothing of it is left, and what its code
        logs is not logged.

        Raises:
            NonDeterminismError: The replay does not stand where the run stands, or its code will not leave memory.
        """
        self._turns.append((turn, more))
        note_commands(self._commands, self._machine)
        if not compare:
            return
        live = stand_of(self._machine, self._commands)
        with _unlogged():
            difference = self._compare(live)
        if difference is not None:
            for tell in listeners[-1:]:
                tell(difference)
            raise difference

    def _compare(self, live: Stand) -> NonDeterminismError | None:
        machine = self._fresh()
        try:
            machine.foresee(entry for (entries, _, _), _ in self._turns for entry in entries)
            for (entries, at, _), more in self._turns:
                machine.deliver(entries, at, more=more)
            found = differences(live, stand_of(machine, note_commands({}, machine)))
        except Exception as error:  # noqa: BLE001 - whatever stopped the replay would stop it at the next restart
            return self._stopped(error)
        finally:
            machine.evict()
        if found:
            return self._differs(found)
        return self._will_not_leave() if machine.pinned else None

    def _differs(self, found: list[Difference]) -> NonDeterminismError:
        lines = [f"{self._where()}, a replay of the run does not stand where the run stands"]
        for what, live, again in found[:_SHOWN]:
            lines += [f"  {what}", f"    run:    {_short(live)}", f"    replay: {_short(again)}"]
        if len(found) > _SHOWN:
            lines.append(f"  and {len(found) - _SHOWN} more")
        return NonDeterminismError("\n".join(lines), run=self._run_id, hint=_HINT)

    def _stopped(self, error: Exception) -> NonDeterminismError:
        told = error.message if isinstance(error, NonDeterminismError) else repr(error)
        stopped = NonDeterminismError(
            f"{self._where()}, a replay of the run stopped, and the run did not: {told}",
            run=self._run_id,
            hint=_HINT,
        )
        stopped.__cause__ = error
        return stopped

    def _will_not_leave(self) -> NonDeterminismError:
        return NonDeterminismError(
            f"{self._where()}, the code of a replay would not end when it was taken out of memory",
            run=self._run_id,
            hint="it catches BaseException, or everything, and goes on; catch Exception, or raise again what you caught",
        )

    def _where(self) -> str:
        entries, _, number = self._turns[-1][0]
        names = [_name(entry) for entry in entries]
        return f"after turn {number} ({', '.join(names)})"


def _name(entry: object) -> str:
    parts = (getattr(entry, "name", ""), getattr(entry, "operation", ""))
    return " ".join([type(entry).__name__, *filter(None, parts)])


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}… ({len(text):,} characters)"


# What a replay logs was logged by the run already.

_replaying: set[int] = set()
"""Threads that are replaying."""


def _filter_logs() -> None:
    """Let loggers drop what a replaying thread says; once per process."""
    original = logging.Logger.handle
    if getattr(original, "drops_replays", False):
        return

    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        if threading.get_ident() not in _replaying:
            original(self, record)

    handle.drops_replays = True  # pyright: ignore[reportFunctionMemberAccess]
    logging.Logger.handle = handle


@contextmanager
def _unlogged() -> Generator[None, None, None]:
    _filter_logs()
    here = threading.get_ident()
    _replaying.add(here)
    try:
        yield
    finally:
        _replaying.discard(here)
