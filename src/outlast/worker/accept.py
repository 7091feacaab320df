"""What an operator lets pass is written before the journal is replayed: it says what the replay may meet."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.journal.entry import StampedRow
from outlast.replay.machine import Machine
from outlast.store.change import MessageKind, RunChange
from outlast.store.protocol import RunImage
from outlast.worker.inbox import proposal_of
from outlast.worker.proposal import Proposal


def acceptances(image: RunImage, machine: Machine) -> list[Proposal]:
    """Return what is to be written of the acceptances in a run's inbox.

    Args:
        machine: To which nothing was delivered yet.
    """
    return [
        proposal_of(one, machine, image.head.generation)
        for one in image.messages
        if one.message.kind is MessageKind.ACCEPT
    ]


def after(image: RunImage, change: RunChange, at: datetime) -> RunImage:
    """Return a run as it stands once its acceptances were written.

    Args:
        at: When that was.
    """
    return msgspec.structs.replace(
        image,
        rows=(*image.rows, *(StampedRow(row, at) for row in change.entries)),
        messages=tuple(
            one for one in image.messages if one.message.message_id not in change.consumed
        ),
    )
