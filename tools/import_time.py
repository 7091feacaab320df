"""What `import outlast` costs beyond bare Python: the median of some runs of each, and the modules that cost most.

A measurement to read, not a test: a busy machine must not fail a change. The tests hold the list of imported modules.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time

BUDGET_MS = 150
"""Beyond bare Python, on an idle machine."""

_LINE = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \|( *)(\S+)")


def milliseconds(statement: str) -> float:
    """Return how long a new interpreter takes to run `statement` from outside the source tree."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=tempfile.gettempdir())
    return (time.perf_counter() - began) * 1000


def medians(runs: int) -> tuple[float, float]:
    """Return the median time of bare Python and of `import outlast`, run in turns so that both meet the same load."""
    milliseconds("import outlast")  # bytecode is written, files are cached
    bare: list[float] = []
    loaded: list[float] = []
    for _ in range(runs):
        bare.append(milliseconds("pass"))
        loaded.append(milliseconds("import outlast"))
    return statistics.median(bare), statistics.median(loaded)


def costs() -> list[tuple[str, float]]:
    """Return each module that the import brings and its own milliseconds, dearest first; tracing itself slows them."""
    command = [sys.executable, "-X", "importtime", "-c", "import outlast"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=tempfile.gettempdir()
    )
    found = [_LINE.match(line) for line in done.stderr.splitlines()]
    own = [(match[4], int(match[1]) / 1000) for match in found if match]
    return sorted(own, key=lambda item: -item[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    options = parser.parse_args()
    bare, loaded = medians(options.runs)
    beyond = loaded - bare
    if options.json:
        print(json.dumps({"bare_ms": bare, "outlast_ms": loaded, "beyond_ms": beyond}))
        return
    print(f"bare Python      {bare:7.1f} ms   (median of {options.runs})")
    print(f"import outlast   {loaded:7.1f} ms")
    print(f"beyond           {beyond:7.1f} ms   (budget {BUDGET_MS} ms)")
    print("\nDearest modules (own time, traced):")
    for name, cost in costs()[:15]:
        print(f"  {cost:6.2f} ms  {name}")


if __name__ == "__main__":
    main()
