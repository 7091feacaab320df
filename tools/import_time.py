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


def costs(cache: str) -> tuple[float, dict[str, float]]:
    """Return the milliseconds of Outlast's own modules, and of each module that they import with all that it brings.

    The lowest of five traces; tracing itself slows an import.
    """
    own: list[float] = []
    brought: dict[str, float] = {}
    for _ in range(5):
        trace = interpret(["-X", "importtime", "-c", "import outlast"], cache)
        found = [match for match in map(_LINE.match, trace.splitlines()) if match]
        own.append(sum(int(match[1]) for match in found if _is_ours(match[4])) / 1000)
        for match in found:
            if not _is_ours(match[4]):
                cost = int(match[2]) / 1000
                brought[match[4]] = min(cost, brought.get(match[4], cost))
    return min(own), brought


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "outlast"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        bare, loaded = medians(options.runs, cache)
        own, brought = costs(cache)
    beyond = loaded - bare
    if options.json:
        print(json.dumps({"bare_ms": bare, "outlast_ms": loaded, "beyond_ms": beyond}))
        return
    print(f"bare Python      {bare:7.1f} ms   (median of {options.runs})")
    print(f"import outlast   {loaded:7.1f} ms")
    print(f"beyond           {beyond:7.1f} ms   (budget {BUDGET_MS} ms)")
    print(
        f"\nOutlast's own modules {own:6.1f} ms. Dearest others, with all that they bring (they overlap):"
    )
    for name in sorted(brought, key=brought.__getitem__, reverse=True)[:15]:
        print(f"  {brought[name]:6.1f} ms  {name}")


if __name__ == "__main__":
    main()
