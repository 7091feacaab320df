"""How big modules, functions and classes are: a table to read, and limits that block.

Past the aim, look for a seam. Past the limit the check fails, unless `ACCEPTED` says why the thing is better whole;
a line there that is no longer needed fails too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "outlast"
DATA = ROOT / "demo" / "data"

# measure: aim, seam (look for one), block
LIMITS = {
    "module lines": (300, 500, 800),
    "function lines": (25, 50, 80),
    "public methods": (8, 12, 20),
    "parameters": (4, 6, 8),
    "complexity": (5, 8, 10),
}

ACCEPTED: dict[tuple[str, str], str] = {
    ("complexity", "replay/machine.py:Machine._apply"): (
        "one flat match over the closed union of entries"
    ),
    ("complexity", "store/postgres/look.py:Look._add"): (
        "one flat match over the closed union of changes"
    ),
    ("complexity", "testing/simulation/shrink.py:_simpler"): (
        "one flat match over the closed union of shapes"
    ),
    ("parameters", "workflows/decorator.py:effect"): (
        "each parameter is a sentence of the declaration"
    ),
    (
        "parameters",
        "workflows/decorator.py:step",
    ): "each parameter is a sentence of the declaration",
    ("parameters", "workflows/approval.py:approval"): (
        "each parameter is a sentence of the request"
    ),
    ("parameters", "workflows/terms.py:Approval.__init__"): (
        "each parameter is a sentence of the declaration"
    ),
    ("public methods", "client/client.py:Client"): "one facade; five of them name parts of it",
    ("parameters", "app.py:open"): "each parameter is a sentence about the app",
    ("parameters", "cli/fork.py:fork"): "each parameter is an option of the command",
    ("parameters", "cli/approval.py:approve"): "each parameter is an option of the command",
    ("parameters", "cli/approval.py:deny"): "each parameter is an option of the command",
    ("parameters", "cli/worker.py:worker"): "each parameter is an option of the command",
    ("function lines", "cli/worker.py:worker"): "each parameter is an option of the command",
    ("parameters", "cli/doubt.py:resolve"): "each parameter is an option of the command",
    ("parameters", "cli/policy.py:explain_call"): "each parameter is an option of the command",
    ("public methods", "store/memory.py:MemoryStore"): "the Store protocol names them",
    ("public methods", "store/sqlite/store.py:SQLiteStore"): "the Store protocol names them",
    ("public methods", "store/postgres/store.py:PostgresStore"): "the Store protocol names them",
    ("public methods", "store/postgres/read.py:Reading"): "the StoreReader protocol names them",
    ("public methods", "store/rows.py:RunRows"): "a few verbs for each table of a run",
    ("public methods", "store/memory_rows.py:MemoryRun"): "the RunRows protocol names them",
    (
        "public methods",
        "store/postgres/loaded.py:LoadedRun",
    ): "the RunRows protocol names most of them",
    ("public methods", "testing/fault.py:FaultyStore"): "the Store protocol names them",
    ("public methods", "replay/machine.py:Machine"): (
        "the protocols Context (workflow code) and LoopHost (the loop) name half of them"
    ),
    ("parameters", "client/handle.py:RunHandle.resolve"): (
        "each parameter is what an operator can say"
    ),
    ("module lines", "journal/entry.py"): "the closed union of what a journal can hold",
    ("module lines", "store/change.py"): "the closed union of what can be written",
    ("module lines", "client/explain.py"): "one sentence for each thing that a run can wait for",
    ("module lines", "errors.py"): "one tree; two thirds of it are the examples in the docstrings",
    ("module lines", "client/client.py"): "one facade; half of it are docstrings and overloads",
    ("module lines", "client/handle.py"): "one facade; half of it are docstrings and overloads",
    (
        "module lines",
        "worker/pilot.py",
    ): "one run's mover: taking up, writing, waiting and parking share one state",
    ("complexity", "worker/pilot.py:Pilot._sort_commands"): (
        "one flat match over the closed union of commands"
    ),
    ("complexity", "testing/simulation/written.py:Written._entry"): (
        "one flat match over the kinds of entries"
    ),
    ("complexity", "store/sqlite/unowned.py:start"): "one condition of a start each",
    ("public methods", "worker/pilot.py:Pilot"): "the Bridge protocol names half of them",
    ("public methods", "replay/loop.py:WorkflowLoop"): "asyncio.AbstractEventLoop names them",
}
"""(measure, place): why it may be past the limit."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCHES = ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler


@dataclass(frozen=True)
class Size:
    """One number: what was measured, where, how much."""

    measure: str
    place: str
    value: int


def complexity(function: Function) -> int:
    """Return McCabe's number as ruff counts it: one, and one more for each statement that branches."""
    return 1 + sum(_branches(node) for node in ast.walk(function) if node is not function)


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.Match):
        return sum(1 for case in node.cases if not _is_default(case))
    return int(isinstance(node, _BRANCHES | Function))


def _is_default(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and not case.guard


def body_lines(function: Function) -> int:
    """Return the lines from `def` to the end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and isinstance(first, ast.Expr):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def parameters(function: Function, *, method: bool) -> int:
    """Return how many parameters a caller sees, `self` and `cls` left out."""
    spec = function.args
    static = any(
        isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list
    )
    count = len(spec.posonlyargs) + len(spec.args) + len(spec.kwonlyargs)
    return count - (1 if method and not static else 0)


def _is_overload(function: Function) -> bool:
    return any(
        isinstance(one, ast.Name) and one.id == "overload" for one in function.decorator_list
    )


def _measure(node: ast.AST, place: str, *, method: bool) -> Iterator[Size]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            name = f"{place}{child.name}"
            public = [
                one
                for one in child.body
                if isinstance(one, Function)
                and not one.name.startswith(("_", "test_"))
                and not _is_overload(one)
            ]
            yield Size("public methods", name, len(public))
            yield from _measure(child, f"{name}.", method=True)
        elif isinstance(child, Function):
            if _is_overload(child):
                continue
            name = f"{place}{child.name}"
            yield Size("function lines", name, body_lines(child))
            yield Size("parameters", name, parameters(child, method=method))
            yield Size("complexity", name, complexity(child))
            yield from _measure(child, f"{name}.", method=False)
        else:
            yield from _measure(child, place, method=method)


def sizes(root: Path) -> list[Size]:
    """Return every size under `root`."""
    found: list[Size] = []
    for path in sorted(root.rglob("*.py")):
        if path.is_relative_to(DATA):
            continue
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(root).as_posix()
        found.append(Size("module lines", place, len(text.splitlines())))
        found += _measure(ast.parse(text, str(path)), f"{place}:", method=False)
    return found


def table(found: list[Size]) -> str:
    """Return the distribution of each measure, and what is past its seam."""
    lines = [
        f"{'':16}{'count':>7}{'median':>8}{'p95':>6}{'max':>6}{'aim':>6}{'seam':>6}{'block':>7}"
    ]
    for measure, (aim, seam, block) in LIMITS.items():
        values = sorted(size.value for size in found if size.measure == measure) or [0]
        middle, high = (
            values[len(values) // 2],
            values[min(len(values) - 1, len(values) * 95 // 100)],
        )
        lines.append(
            f"{measure:16}{len(values):>7}{middle:>8}{high:>6}{values[-1]:>6}{aim:>6}{seam:>6}{block:>7}"
        )
    large = [size for size in found if size.value > LIMITS[size.measure][1]]
    if large:
        lines.append("\nPast the seam:")
    for size in sorted(large, key=lambda one: (one.measure, -one.value)):
        mark = "  BLOCKS" if _blocks(size) else ""
        lines.append(f"  {size.measure:16}{size.value:>5}  {size.place}{mark}")
    return "\n".join(lines)


def _over(size: Size) -> bool:
    return size.value > LIMITS[size.measure][2]


def _blocks(size: Size) -> bool:
    return _over(size) and (size.measure, size.place) not in ACCEPTED


def faults(found: list[Size]) -> list[str]:
    """Return why the check fails."""
    past = {(size.measure, size.place) for size in found if _over(size)}
    blocked = [
        f"{size.place}: {size.value} {size.measure}, more than {LIMITS[size.measure][2]}"
        for size in found
        if _blocks(size)
    ]
    idle = [
        f"{place}: accepted for {measure}, but within the limit"
        for measure, place in ACCEPTED.keys() - past
    ]
    return blocked + sorted(idle)


def main() -> int:
    """Print the table; return 1 when something blocks."""
    found = sizes(ROOT)
    print(table(found))
    wrong = faults(found)
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    if wrong:
        print(
            "Split it, or say in ACCEPTED (tools/size.py) why it is better whole.", file=sys.stderr
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
