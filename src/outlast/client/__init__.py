"""The outside of a run: start it, send to it, look at it, decide for it, end it."""

from outlast.client.approval import Approvals
from outlast.client.client import Birth, Client, IfClosed, Runs
from outlast.client.handle import RunHandle
from outlast.client.task import TaskView
from outlast.client.view import ApprovalView, JournalEntry, RunDetail, RunStatus
from outlast.effects.standing import Alarm, Standing
from outlast.store.change import Status

__all__ = [
    "Alarm",
    "ApprovalView",
    "Approvals",
    "Birth",
    "Client",
    "IfClosed",
    "JournalEntry",
    "RunDetail",
    "RunHandle",
    "RunStatus",
    "Runs",
    "Standing",
    "Status",
    "TaskView",
]
