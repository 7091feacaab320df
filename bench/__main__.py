"""Run scenarios and print a JSON line for each.

python -m bench                             all, on SQLite and PostgreSQL
python -m bench S2 --on sqlite --repeat 3   one of them, three times
python -m bench S2 --number 100             with another number of runs (of steps, in S1 and S6)
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
from pathlib import Path
from typing import Any

from bench.figure import emit, quiet
from bench.floor import floor, round_trip
from bench.killed import s5, s6
from bench.place import PLACES, Place, opened
from bench.scenario import s1, s2, s3, s4, s7

SCENARIOS = {"S1": s1, "S2": s2, "S3": s3, "S4": s4, "S5": s5, "S6": s6, "S7": s7}


def measure(place: Place, name: str, number: int | None) -> dict[str, Any]:
    """Run one scenario once."""
    given = {} if number is None else {"number": number}
    return asyncio.run(SCENARIOS[name](place, **given))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=(inspect.getdoc(inspect.getmodule(main)) or "").partition("\n")[0]
    )
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--on", nargs="*", choices=PLACES, default=["sqlite", "postgres"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--number", type=int)
    parser.add_argument("--folder", type=Path, help="on whose disk stores are made")
    options = parser.parse_args()
    unknown = set(options.scenario) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    quiet()
    for name in options.on:
        with opened(name, options.folder) as place:
            emit("floor", name, **floor(place))
            if name == "postgres":
                emit("round trip", name, ms=1000 * round_trip(place.fresh()))
            for scenario in options.scenario or SCENARIOS:
                if name == "memory" and scenario in {"S5", "S6", "S7"}:
                    continue
                for turn in range(options.repeat):
                    emit(scenario, name, turn=turn, **measure(place, scenario, options.number))


if __name__ == "__main__":
    main()
