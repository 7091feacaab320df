"""Law of stands: two machines to which the same turns were delivered stand the same, whatever was taken from one of them."""

from __future__ import annotations

import importlib.util
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import given

from outlast.worker.always_replay import AlwaysReplay


def _shapes() -> ModuleType:
    """Return the random workflows of the machine's own laws, and the driver that answers them."""
    name = "outlast_machine_laws"
    place = Path(__file__).with_name("test_machine.py")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


laws: Any = _shapes()


class Watched(laws.Live):
    """A run that is replayed and compared after each turn."""

    check: AlwaysReplay | None = None

    def commit(self, turns: list[list[Any]]) -> None:
        """Deliver turn by turn, and take commands only at the end, as a worker does."""
        if self.check is None:
            self.check = AlwaysReplay(
                self.machine, lambda: laws.fresh(laws.Shaped(self.shape)), "run-1"
            )
        self.now += timedelta(seconds=self.random.choice([0, 0, 1, 3]))
        for turn in turns:
            self.journal.append((turn, self.now))
            self.machine.deliver(turn, self.now)
            self.check((turn, self.now, len(self.journal)), compare=True)
        laws.note(self.outstanding, self.machine, self.machine.take_commands())
        self.finish = self.outstanding.get("")


@laws.quick
@given(laws.shapes, laws.seeds)
def test_a_deterministic_workflow_never_differs_from_its_replay(shape: Any, seed: int) -> None:
    """Open operations, whole commands, messages, conditions, draws, tasks and where they wait are the same after every turn."""
    Watched(shape, seed).run()
