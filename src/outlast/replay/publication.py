"""What a run publishes: values under names, for whoever looks on from outside.

Guards two promises: what workflow code has published is recorded, in the order in which it was published, whatever becomes of the
code; and nothing is taken for published that is not in the journal, or about to be.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Raw

from outlast.journal.entry import OperationId, Published
from outlast.replay.agenda import Agenda
from outlast.replay.command import PublishValue
from outlast.replay.operation import PublishOperation


class Publications:
    """The published values of one run.

    Args:
        agenda: Holds those that are not recorded yet.
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._pending: Counter[str] = Counter()
        self.values: dict[str, Raw] = {}
        """The last value of each name as JSON, those included that are about to be recorded."""

    def publish(self, operation: OperationId, name: str, value: Raw) -> None:
        """Have a value recorded."""
        self._pending[name] += 1
        self.values[name] = value
        self._agenda.open(
            PublishOperation(operation, name),
            PublishValue(operation=operation, name=name, value=value),
        )

    def settle(self, entry: Published) -> None:
        """Take in that a value was recorded; an older value than the last one changes nothing.

        Raises:
            NonDeterminismError: The code publishes something else there, or nothing.
        """
        if entry.operation:
            self._agenda.expect(entry.operation, PublishOperation, entry.name)
            self._agenda.close(entry.operation)
            self._pending[entry.name] -= 1
        if not self._pending[entry.name]:
            self.values[entry.name] = entry.value
