"""How a worker behaves: what it is told when it is made. Whoever only says it loads no worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from outlast.meter.meters import NO_METERS, Meters
from outlast.policy import Policy, PolicyFile
from outlast.policy.authority import Authority
from outlast.worker.growth import DEFAULT_LIMITS, HistoryLimits
from outlast.worker.lease import LEASE
from outlast.worker.parked import OnParked

POLL = timedelta(milliseconds=500)
"""How often to look without a hint: losing every hint costs this much latency and nothing else."""

TASKS = 10
"""Remote steps at once: few, so that workers share what waits; who has one device sets one."""

GRACE = timedelta(seconds=10)
"""So long attempts may go on when a worker stops, where nothing else is said: less than what keeps processes running waits for their end."""
RECHECK_WITHIN = timedelta(seconds=5)
"""So old what was found out about an effect may be when it begins, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves.

    Args:
        lease: How long it may be silent before others take its runs.
        idle: How long a run that only waits stays in memory.
        poll: How often to look for work without a hint.
        runs: How many runs it holds in memory at once.
        host: The machine's name, for people.
        pid: The process.
        library: Outlast's version.
        always_replay: Replay each run after each turn, and compare; for tests. None: as `OUTLAST_ALWAYS_REPLAY` says.
        history: How long journals may become.
        queues: Whose remote steps it runs, if it has them registered; none by default.
        tasks: How many of those it runs at once.
        policy: What effects may do; None for whatever they want. A file is looked at again.
        authority: Who may do what; None where everybody may.
        recheck_within: How old what was found out about an effect may be when it begins.
        paused: Move only what is released, until everything is.
        parked: Called with each run that this worker leaves `blocked`; see `worker.parked`.
        meters: Told what it writes, takes and attempts.
        grace: How long attempts may go on when it stops.
    """

    lease: timedelta = LEASE
    idle: timedelta = timedelta(seconds=1)
    poll: timedelta = POLL
    runs: int = 1000
    host: str = ""
    pid: int = 0
    library: str = ""
    always_replay: bool | None = None
    history: HistoryLimits = DEFAULT_LIMITS
    queues: tuple[str, ...] = ()
    tasks: int = TASKS
    policy: Policy | PolicyFile | None = None
    authority: Authority | None = None
    recheck_within: timedelta = RECHECK_WITHIN
    paused: bool = False
    parked: OnParked | None = None
    meters: Meters = NO_METERS
    grace: timedelta = GRACE
