"""What all runs of one worker life share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from outlast.clock import Clock
from outlast.policy.authority import Authority
from outlast.replay.delivery import TurnCheck
from outlast.replay.machine import Machine
from outlast.store.change import WorkerId
from outlast.store.protocol import Store
from outlast.worker.control import Controls
from outlast.worker.deposit import Deposits
from outlast.worker.executor import Executor
from outlast.worker.growth import DEFAULT_LIMITS, HistoryLimits
from outlast.worker.holder import Holders
from outlast.worker.lease import Lease
from outlast.worker.options import RECHECK_WITHIN
from outlast.worker.parked import Parking
from outlast.worker.relay import Relay
from outlast.worker.rules import RuleBook
from outlast.worker.writer import Writer
from outlast.workflows.registry import Registry


@dataclass(frozen=True, slots=True)
class Deck:
    """What a pilot is given.

    Args:
        idle: How long a run that only waits stays in memory.
        relay: Told when a run has put something into its outbox.
        deposits: Told of attempts of effects whose end their run can no longer be told.
        check: Makes what looks at a run after each turn, of its machine, of what makes another one, and of its id.
        history: How long journals may become.
        holders: Told of requests to people.
        controls: The worker's copy of the control rows.
        book: The policy in force.
        authority: Who may do what; None where everybody may.
        parking: Told of runs that become `blocked`.
        recheck_within: How old what was found out about an effect may be when it begins.
    """

    store: Store
    writer: Writer
    lease: Lease
    executor: Executor
    clock: Clock
    registry: Registry
    worker: WorkerId
    build: str
    library: str
    idle: timedelta
    relay: Relay
    deposits: Deposits
    controls: Controls
    book: RuleBook
    parking: Parking
    authority: Authority | None = None
    recheck_within: timedelta = RECHECK_WITHIN
    check: Callable[[Machine, Callable[[], Machine], str], TurnCheck] | None = None
    history: HistoryLimits = DEFAULT_LIMITS
    holders: Holders = field(default_factory=lambda: Holders(None))
