"""What `import outlast` costs beyond bare Python: the median of some runs of each, and the modules that cost most.

A measurement to read, not a test: a busy machine must not fail a change. The tests hold the list of imported modules.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

BUDGET_MS = 150
"""Beyond bare Python, on an idle machine."""

_LINE = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \|( *)(\S+)")


def interpret(arguments: list[str], cache: str) -> str:
    """Run a new interpreter outside the source tree, with bytecode as an installer leaves it; return its standard error.

    Args:
        cache: Folder for the bytecode, so that neither the source tree nor the caller's settings matter.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment["PYTHONPYCACHEPREFIX"] = cache
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, check=True, cwd=cache, env=environment, stderr=subprocess.PIPE, text=True
    )
    return done.stderr


def milliseconds(statement: str, cache: str) -> float:
    """Return how long a new interpreter takes to run `statement`."""
    began = time.perf_counter()
    interpret(["-c", statement], cache)
    return (time.perf_counter() - began) * 1000


def medians(runs: int, cache: str) -> tuple[float, float]:
    """Return the median time of bare Python and of `import outlast`, run in turns so that both meet the same load."""
    milliseconds("import outlast", cache)  # bytecode is written, files are cached
    bare: list[float] = []
    loaded: list[float] = []
    for _ in range(runs):
        bare.append(milliseconds("pass", cache))
        loaded.append(milliseconds("import outlast", cache))
    return statistics.median(bare), statistics.median(loaded)


def costs(cache: str) -> list[tuple[str, float]]:
    """Return each module that the import brings and its own milliseconds, dearest first; tracing itself slows them."""
    trace = interpret(["-X", "importtime", "-c", "import outlast"], cache)
    found = [_LINE.match(line) for line in trace.splitlines()]
    own = [(match[4], int(match[1]) / 1000) for match in found if match]
    return sorted(own, key=lambda item: -item[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        bare, loaded = medians(options.runs, cache)
        dearest = costs(cache)[:15]
    beyond = loaded - bare
    if options.json:
        print(json.dumps({"bare_ms": bare, "outlast_ms": loaded, "beyond_ms": beyond}))
        return
    print(f"bare Python      {bare:7.1f} ms   (median of {options.runs})")
    print(f"import outlast   {loaded:7.1f} ms")
    print(f"beyond           {beyond:7.1f} ms   (budget {BUDGET_MS} ms)")
    print("\nDearest modules (own time, traced):")
    for name, cost in dearest:
        print(f"  {cost:6.2f} ms  {name}")


if __name__ == "__main__":
    main()
