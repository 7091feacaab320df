"""The page on scaling: its program runs, what it tells to type is there, and its arithmetic is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bench.scaling import TABLES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scaling.md").read_text()


def test_a_tenant_has_one_cell() -> None:
    """Whichever process asks: the hash is none that differs between processes."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["cell_of"]("acme") == names["CELLS"][0]
    assert {names["cell_of"](f"tenant-{n}") for n in range(50)} == set(names["CELLS"])


def test_what_is_to_be_typed_is_there() -> None:
    """As modules of the clone."""
    for module in re.findall(r"python -m ([a-z.]+)", PAGE):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_every_table_has_its_measurement() -> None:
    """One for each that the page shows."""
    assert set(TABLES) == {"flight", "processes", "effects", "stored", "idle"}
    assert PAGE.count("| steps/s |") == 4


def test_the_arithmetic_of_a_primary_is_right() -> None:
    """To two digits."""
    for total, cost, told in re.findall(r"(\d+) cores / ([\d.]+) ms \| ([\d,]+) \|", PAGE):
        exact = int(total) * 1000 / float(cost)
        assert abs(int(told.replace(",", "")) - exact) < 0.03 * exact
    ((rate, size, told),) = re.findall(r"(\d+) MB/s / ([\d.]+) KB \| ([\d,]+) \|", PAGE)
    exact = int(rate) * 1000 / float(size)
    assert abs(int(told.replace(",", "")) - exact) < 0.03 * exact
