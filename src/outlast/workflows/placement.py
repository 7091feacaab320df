"""Where a step runs: in the worker that has the run, or in any worker that serves its queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import Struct

from outlast.effects.key import check_name
from outlast.errors import DefinitionError

_LONGEST_WAIT = timedelta(days=3650)


class Placement(Struct, frozen=True):
    """Where the attempts of a step are made.

    Args:
        queue: Whose workers make them; empty for the worker that has the run.
        schedule_to_start_timeout: How long an attempt may wait for a worker of the queue; no limit by default.
    """

    queue: str = ""
    schedule_to_start_timeout: timedelta | None = None

    def check(self, step: str) -> Placement:
        """Return it, or refuse what cannot be kept.

        Args:
            step: The name of the step, for errors.

        Raises:
            DefinitionError: The queue is no name, or the timeout is no time, or has nothing to wait for.
        """
        queue: Any = self.queue
        if not isinstance(queue, str):
            raise DefinitionError(
                f"step {step} has queue={queue!r}, which is no name",
                step=step,
                hint='give the name of a queue, as queue="gpu"',
            )
        if queue:
            check_name(queue, what="queue")
        self._check_timeout(step)
        return self

    def _check_timeout(self, step: str) -> None:
        timeout: Any = self.schedule_to_start_timeout
        if timeout is None:
            return
        if not isinstance(timeout, timedelta) or not timedelta(0) < timeout < _LONGEST_WAIT:
            raise DefinitionError(
                f"step {step} has a schedule_to_start_timeout of {timeout!r}",
                step=step,
                hint="give a timedelta longer than nothing and shorter than ten years, as timedelta(minutes=5)",
            )
        if not self.queue:
            raise DefinitionError(
                f"step {step} has a schedule_to_start_timeout and no queue",
                step=step,
                hint="a step without a queue begins at once, in the worker that has the run; give it a queue, or leave the timeout out",
            )


HERE = Placement()
"""In the worker that has the run."""
