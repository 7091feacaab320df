"""Reading a workflow's source for clocks, randomness and I/O, before it ever runs.

Invariant: a name is reported only when it resolves, through the function's own globals and imports, to something that
replay cannot repeat; local names and look-alikes are not.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from msgspec import Struct

_NOW = "Use outlast.now(): the time of the run, the same in every replay."
_SLEEP = "Use `await outlast.sleep(…)`: it outlives the process."
_RANDOM = "Use outlast.random(): a generator of the run, the same in every replay."
_UUID = "Use outlast.uuid4(): the same in every replay."
_STEP = "Move it into a @step (or an @effect, if it changes the world) and await that."
_ENVIRONMENT = "Pass it to the workflow as an argument, or read it in a @step."
_HASH = "Use hashlib in a @step: hashes of text differ between processes."
_ORDER = "Iterate over sorted(…): sets of text have another order in each process, and steps would swap their results."
_SET = "iterating over a set"
_LOOP = "A workflow already runs on a loop: await the coroutine."

_EXACT: dict[str, str] = {
    **dict.fromkeys(
        (
            "datetime.date.today",
            "datetime.datetime.now",
            "datetime.datetime.today",
            "datetime.datetime.utcnow",
            "time.clock_gettime",
            "time.clock_gettime_ns",
            "time.monotonic",
            "time.monotonic_ns",
            "time.perf_counter",
            "time.perf_counter_ns",
            "time.process_time",
            "time.process_time_ns",
            "time.time",
            "time.time_ns",
        ),
        _NOW,
    ),
    "time.sleep": _SLEEP,
    "hash": _HASH,
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4"), _UUID),
    **dict.fromkeys(("os.urandom", "os.getrandom", "random.SystemRandom"), _RANDOM),
    **dict.fromkeys(("os.getenv", "os.environ.get"), _ENVIRONMENT),
    **dict.fromkeys(("asyncio.run", "asyncio.new_event_loop"), _LOOP),
    **dict.fromkeys(
        (
            "open",
            "input",
            "os.system",
            "os.popen",
            "asyncio.to_thread",
        ),
        _STEP,
    ),
}
_MODULES: dict[str, str] = {
    **dict.fromkeys(("random", "secrets"), _RANDOM),
    **dict.fromkeys(
        ("socket", "subprocess", "threading", "multiprocessing", "urllib.request"), _STEP
    ),
    "concurrent.futures": _STEP,
}
_HTTP = frozenset({"aiohttp", "httpx", "requests", "urllib3"})
_HTTP_CALLS = frozenset({
    "AsyncClient", "Client", "ClientSession", "PoolManager", "Session", "delete", "get", "head", "options", "patch",
    "post", "put", "request", "stream",
})  # fmt: skip
_PATH_CALLS = frozenset(
    {"open", "read_bytes", "read_text", "touch", "unlink", "write_bytes", "write_text"}
)
_ALIASES = {
    "_io": "io",
    "_random": "random",
    "_socket": "socket",
    "_thread": "threading",
    "nt": "os",
    "posix": "os",
}

_Resolved: TypeAlias = tuple[tuple[str, ...], object]
"""The dotted names under which something is known, and the thing itself where it could be had."""
_UNKNOWN: _Resolved = ((), None)
_MISSING = object()
_NAMED = (type, FunctionType, BuiltinFunctionType, MethodType)


class Finding(Struct, frozen=True):
    """One thing in a workflow's source that replay cannot repeat.

    Args:
        filename: The source file.
        line: In that file, from 1.
        name: What is called, as `time.time`, or what is done, in words.
        hint: What to write instead.
    """

    filename: str
    line: int
    name: str
    hint: str

    def __str__(self) -> str:
        """Return it as linters print it."""
        what = self.name if " " in self.name else f"{self.name}()"
        return f"{self.filename}:{self.line}: {what} in a workflow. {self.hint}"


def check_source(function: Callable[..., Any]) -> list[Finding]:
    """Return what a workflow function's source does that replay cannot repeat, in the order of lines.

    A function whose source cannot be had yields nothing.
    """
    function = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return []
    names = _Names(function, tree)
    filename = inspect.getsourcefile(function) or "?"
    found = {
        (node.lineno, name): hint
        for node in _walk(tree)
        if isinstance(node, ast.Call)
        for name, hint in [_judge(node, names)]
        if hint
    }
    found.update({(line, _SET): _ORDER for line in _set_iterations(tree, names)})
    return [
        Finding(filename, first + line - 1, name, hint)
        for (line, name), hint in sorted(found.items())
    ]


def _set_iterations(tree: ast.Module, names: _Names) -> Iterator[int]:
    """Return the lines of loops that begin work in the order of a set: a display, a comprehension, set() or a name for one."""
    assigned: dict[str, bool] = {}
    for node in _walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assigned[name] = assigned.get(name, True) and _is_set(value, names)
            case _:
                pass
    for node in _walk(tree):
        for source in _orders(node):
            named = isinstance(source, ast.Name) and assigned.get(source.id, False)
            if named or _is_set(source, names):
                yield source.lineno


def _orders(node: ast.AST) -> list[ast.expr]:
    """Return what decides the order in which a loop begins work; nothing for one that only computes."""
    match node:
        case ast.For(iter=source, body=body) | ast.AsyncFor(iter=source, body=body):
            begins = any(_begins_work(inner) for line in body for inner in ast.walk(line))
            return [source] if begins else []
        case ast.ListComp() | ast.DictComp():
            begins = any(isinstance(inner, ast.Await) for inner in ast.walk(node)) or (
                isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Call)
            )
            return [one.iter for one in node.generators] if begins else []
        case ast.GeneratorExp(elt=ast.Call()):
            return [one.iter for one in node.generators]
        case _:
            return []


def _begins_work(node: ast.AST) -> bool:
    match node:
        case ast.Await() | ast.AsyncWith():
            return True
        case ast.Call(func=ast.Attribute(attr="create_task")):
            return True
        case _:
            return False


def _is_set(node: ast.expr, names: _Names) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    made = names.resolve(node.func)[1] if isinstance(node, ast.Call) else None
    return made is set or made is frozenset


class _Names:
    """What the names in a function's source stand for."""

    def __init__(self, function: Callable[..., Any], tree: ast.Module) -> None:
        self._imports = dict(_local_imports(tree))
        code = getattr(function, "__code__", None)
        self._locals = frozenset(code.co_varnames + code.co_cellvars) if code else frozenset[str]()
        self._namespaces: list[Mapping[str, object]] = [
            _closure(function),
            getattr(function, "__globals__", {}),
            vars(builtins),
        ]

    def resolve(self, node: ast.expr) -> _Resolved:
        """Return what an expression of dotted names stands for."""
        match node:
            case ast.Name(id=name):
                return self._resolve_name(name)
            case ast.Attribute(value=value, attr=attribute):
                return _attribute(self.resolve(value), attribute)
            case _:
                return _UNKNOWN

    def _resolve_name(self, name: str) -> _Resolved:
        if name in self._imports:
            return self._imports[name]
        if name in self._locals:
            return _UNKNOWN
        for namespace in self._namespaces:
            if name in namespace:
                return _described(namespace[name])
        return _UNKNOWN


def _judge(call: ast.Call, names: _Names) -> tuple[str, str]:
    """Return the name under which a call is refused and what to write instead; twice nothing if it is harmless."""
    dotted, thing = names.resolve(call.func)
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return "", ""
    for name in dotted:
        if name == "random.Random" and (call.args or call.keywords):
            return "", ""  # seeded: the same in every replay
        if hint := _hint(name):
            return name, hint
    match call.func:
        case ast.Attribute(value=ast.Call(func=inner), attr=attribute) if attribute in _PATH_CALLS:
            made = names.resolve(inner)[1]
            if isinstance(made, type) and made.__module__.partition(".")[0] == "pathlib":
                return f"pathlib.{made.__name__}.{attribute}", _STEP
        case _:
            pass
    return "", ""


def _hint(name: str) -> str:
    if exact := _EXACT.get(name):
        return exact
    module, _, last = name.rpartition(".")
    if module in _MODULES:
        return _MODULES[module]
    return _STEP if name.partition(".")[0] in _HTTP and last in _HTTP_CALLS else ""


def _attribute(base: _Resolved, attribute: str) -> _Resolved:
    dotted, thing = base
    if not dotted:
        return _UNKNOWN
    names = tuple(f"{name}.{attribute}" for name in dotted)
    # Only modules and classes are looked into: anything else could run code on being asked.
    found: object = (
        inspect.getattr_static(thing, attribute, _MISSING) if isinstance(thing, type) else _MISSING
    )
    if isinstance(thing, ModuleType):
        found = vars(thing).get(attribute, _MISSING)
    if found is _MISSING:
        return names, None
    more, found = _described(found)
    return tuple(dict.fromkeys(names + more)), found


def _described(thing: object) -> _Resolved:
    """Return the names under which an object that was found is known."""
    if issubclass(type(thing), ModuleType):
        module_name: str = vars(thing)["__name__"]
        return (_aliased(module_name),), thing
    if not issubclass(type(thing), _NAMED):
        # An instance (as `os.environ`) is known only by the path to it, and asking it anything could run its code.
        return _UNKNOWN
    named: Any = thing
    owner: object = getattr(named, "__self__", None)
    module, name = named.__module__ or "", named.__qualname__
    if isinstance(owner, ModuleType):
        module = owner.__name__
    elif isinstance(owner, type):
        module, name = f"{owner.__module__}.{owner.__qualname__}", named.__name__
    elif owner is not None:
        module, name = (
            type(owner).__module__,
            named.__name__,
        )  # a method of `random`'s hidden generator
    return (_aliased(f"{module}.{name}"),), thing


def _aliased(dotted: str) -> str:
    head, dot, rest = dotted.partition(".")
    if head == "builtins" or dotted in {"_io.open", "io.open"}:
        return rest
    return _ALIASES.get(head, head) + dot + rest


def _closure(function: Callable[..., Any]) -> Mapping[str, object]:
    try:
        return inspect.getclosurevars(function).nonlocals
    except (TypeError, ValueError):
        return {}


def _local_imports(tree: ast.Module) -> Iterator[tuple[str, _Resolved]]:
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or module, ((module,), sys.modules.get(module))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            base: _Resolved = ((node.module,), sys.modules.get(node.module))
            for alias in node.names:
                yield alias.asname or alias.name, _attribute(base, alias.name)


def _walk(tree: ast.Module) -> Iterator[ast.AST]:
    """Walk what runs when the workflow does: its body, but not that of steps and effects within.

    Decorators, defaults and annotations of the function itself are evaluated once, where it is defined; those of functions within it
    in each run.
    """
    for top in tree.body:
        is_function = isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in top.body if is_function else [top]:
            yield from _walk_all(node)


def _walk_all(node: ast.AST) -> Iterator[ast.AST]:
    if _is_step(node):
        return
    yield node
    for inner in ast.iter_child_nodes(node):
        yield from _walk_all(inner)


def _is_step(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    decorators = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    names = (
        one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in decorators
    )
    return any(name in {"step", "effect"} for name in names)
