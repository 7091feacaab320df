"""The suite that every store and every wrapper of one passes.

A store's own tests derive from `StoreConformance` and give a fixture `open_store`: a function that returns an async context
manager over a `Bench`. The suite needs no plugin; each test runs an event loop of its own.

```python
class TestMine(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path):
        @asynccontextmanager
        async def opened():
            clock = ManualClock()
            store = await open_mine(tmp_path, clock=clock)
            try:
                yield Bench(store, clock)
            finally:
                await store.close()

        return opened
```
"""

from __future__ import annotations

from outlast.testing.conformance.approval import ApprovalConformance
from outlast.testing.conformance.beat import BeatConformance
from outlast.testing.conformance.bench import Bench, ManualClock, SteerableClock
from outlast.testing.conformance.change import ChangeConformance
from outlast.testing.conformance.claim import ClaimConformance
from outlast.testing.conformance.doubt import DoubtConformance
from outlast.testing.conformance.figures import FiguresConformance
from outlast.testing.conformance.length import LengthConformance
from outlast.testing.conformance.message import MessageConformance
from outlast.testing.conformance.notice import NoticeConformance
from outlast.testing.conformance.outbox import OutboxConformance
from outlast.testing.conformance.pause import PauseConformance
from outlast.testing.conformance.permit import PermitConformance
from outlast.testing.conformance.reader import ReaderConformance
from outlast.testing.conformance.request import RequestConformance
from outlast.testing.conformance.rollover import RollOverConformance
from outlast.testing.conformance.sticky import StickyConformance
from outlast.testing.conformance.task import TaskConformance
from outlast.testing.conformance.timeline import TimelineConformance
from outlast.testing.conformance.vote import VoteConformance

__all__ = ["Bench", "ManualClock", "SteerableClock", "StoreConformance"]


class StoreConformance(
    ChangeConformance,
    ClaimConformance,
    LengthConformance,
    MessageConformance,
    PauseConformance,
    ApprovalConformance,
    VoteConformance,
    StickyConformance,
    PermitConformance,
    OutboxConformance,
    ReaderConformance,
    RollOverConformance,
    TaskConformance,
    BeatConformance,
    DoubtConformance,
    RequestConformance,
    NoticeConformance,
    TimelineConformance,
    FiguresConformance,
):
    """Everything that a store promises."""
