"""The outside of a run: start it, send to it, look at it, decide for it, end it."""

from outlast.approvals.receipt import Receipt
from outlast.client.approval import Approvals
from outlast.client.client import Birth, Client, IfClosed, Runs
from outlast.client.doubt import Doubt, Resolved
from outlast.client.explain import Explanation, Wait
from outlast.client.handle import RunHandle
from outlast.client.mail import Mail
from outlast.client.pin import PinBook
from outlast.client.request import Requests, RequestView
from outlast.client.role import RoleBook
from outlast.client.sticky import Sticky, StickyView
from outlast.client.stop import StopBook, StopView
from outlast.client.task import TaskView
from outlast.client.view import (
    ApprovalView,
    Changed,
    Generation,
    JournalEntry,
    NextAsked,
    Retry,
    RunDetail,
    RunStatus,
    Told,
)
from outlast.effects.standing import Alarm, Standing
from outlast.store.change import Status

__all__ = [
    "Alarm",
    "ApprovalView",
    "Approvals",
    "Birth",
    "Changed",
    "Client",
    "Doubt",
    "Explanation",
    "Generation",
    "IfClosed",
    "JournalEntry",
    "Mail",
    "NextAsked",
    "PinBook",
    "Receipt",
    "RequestView",
    "Requests",
    "Resolved",
    "Retry",
    "RoleBook",
    "RunDetail",
    "RunHandle",
    "RunStatus",
    "Runs",
    "Standing",
    "Status",
    "Sticky",
    "StickyView",
    "StopBook",
    "StopView",
    "TaskView",
    "Told",
    "Wait",
]
