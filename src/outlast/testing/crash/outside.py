"""People, as far as a trial needs them."""

from __future__ import annotations

import asyncio
import contextlib

from outlast.client import Client
from outlast.errors import DecisionRefusedError

_LOOK_SECONDS = 0.5


async def approve_everything(client: Client) -> None:
    """Say yes to whatever is asked, as soon as it is asked, without end: for a Workload's `meanwhile`."""
    while True:
        for view in await client.approvals.list():
            # It may have expired or been withdrawn since it was listed.
            with contextlib.suppress(DecisionRefusedError):
                await client.approvals.approve(
                    view.run_id, view.approval_id, seen_sha256=view.subject_sha256
                )
        await asyncio.sleep(_LOOK_SECONDS)
