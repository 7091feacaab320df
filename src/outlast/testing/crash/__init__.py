"""Crash points: a workload is run once and its commits and calls counted; then its process is killed before, during and after them.

    work = testing.Workload(lambda: fix(finding), receiver=receiver, meanwhile=testing.approve_everything)
    for trial in testing.every_crash(work):
        assert trial.result == "fixed" and set(receiver.changes.values()) == {1}, trial

A *commit* is what the process writes into the store, its client's included: the process dies before or after it. A *call* is each
attempt of an effect or a step, and each question to a probe: before it, the process dies as the body begins; during it, as the body
first waits, with a request on its way perhaps (a body that waits for nothing has no such point); after it, when the world has
changed, and the answer never reaches the worker.

Invariant that the trials are for: whatever the points, a worker that comes after reaches the undisturbed result, no recorded outcome
happens again, and the outside world was changed exactly as often as without a crash.

Everything happens on simulated time in one thread: bodies reach the world through doubles (`double`), never through sockets.
A claim or a lease is no point of its own: between a claim and the next commit or call nothing happens that anybody could see.
"""

from outlast.testing.crash.outside import approve_everything
from outlast.testing.crash.point import BodyCall, CrashPoint, Life
from outlast.testing.crash.trial import CrashPointError, Trial, crashed, every_crash, undisturbed
from outlast.testing.crash.watch import double, watched
from outlast.testing.crash.workload import Workload

__all__ = [
    "BodyCall",
    "CrashPoint",
    "CrashPointError",
    "Life",
    "Trial",
    "Workload",
    "approve_everything",
    "crashed",
    "double",
    "every_crash",
    "undisturbed",
    "watched",
]
