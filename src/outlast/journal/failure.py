"""Exceptions as data: what is kept of one, and how it is raised again, the same live and in replay.

A stored failure selects no code. Its type is a label, looked up in the types that the step declares (`raises=`), in a
closed table of Python's own exceptions, and in Outlast's; any other arrives as `StepFailedError`. Law: capturing a
rebuilt failure gives the same failure, its stack apart.
"""

from __future__ import annotations

import traceback
from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PurePath
from types import FrameType
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from outlast import errors
from outlast.errors import OutlastError, StepFailedError

MAX_TEXT = 16 * 1024
"""Longest message or note, in characters; the middle of a longer one is cut out."""

MAX_FAILURES = 100
"""Most failures in one tree of causes and members."""

MAX_TREE_TEXT = 1024 * 1024
"""Characters of one tree, stacks apart, after which no further failure is added to it."""

_MAX_NOTES = 20
_MAX_NAME = 500
_MAX_FRAMES = 40
_MAX_BASES = 10
_MAX_DETAILS = 32
_MAX_DEPTH = 20
_ORIGIN = "_outlast_origin"

_BUILTINS: Mapping[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        Exception, ArithmeticError, AssertionError, AttributeError, BlockingIOError, BrokenPipeError,
        BufferError, ChildProcessError, ConnectionAbortedError, ConnectionError, ConnectionRefusedError,
        ConnectionResetError, EOFError, FileExistsError, FileNotFoundError, FloatingPointError, ImportError,
        IndexError, InterruptedError, IsADirectoryError, KeyError, LookupError, MemoryError,
        ModuleNotFoundError, NameError, NotADirectoryError, NotImplementedError, OSError, OverflowError,
        PermissionError, ProcessLookupError, RecursionError, RuntimeError, TimeoutError, TypeError,
        UnboundLocalError, ValueError, ZeroDivisionError,
    )
}  # fmt: skip
_OWN: Mapping[str, type[OutlastError]] = {
    f"outlast.errors.{name}": kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, OutlastError)
}
_MOST_TOLD = 3
"""Exceptions of a group that are named where it is told in a line."""

_CANCELLED = "asyncio.exceptions.CancelledError"


Plain: TypeAlias = bool | int | float | str | None
"""What is kept of an argument or attribute of an exception."""


class Failure(Struct, frozen=True, omit_defaults=True):
    """What is kept of an exception.

    Args:
        type: The type's name, as `httpx.ConnectError`; Python's own have no module.
        message: What `str` gave; of a group, its message without the count.
        notes: What `add_note` added.
        bases: The names of the type's bases that are not Python's own, nearest first.
        cause: The exception that it was raised from, or during.
        members: The exceptions of a group.
        stack: File name, line and function of each frame, outermost first; no source, no values.
        details: Plain fields: the arguments of Python's own by number, the attributes of all others by name.
    """

    type: str
    message: str
    notes: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    cause: Failure | None = None
    members: tuple[Failure, ...] = ()
    stack: str = ""
    details: dict[str, Plain] = {}


def capture(error: BaseException) -> Failure:
    """Return what is kept of an exception, whatever it does when it is looked at."""
    return _Capture().failure(error)


def tell(failure: Failure) -> str:
    """Return a failure in words, as `OSError: down`; of a group also the first exceptions in it, which say what failed."""
    text = f"{failure.type}: {failure.message}"
    if not failure.members:
        return text
    leaves = list(leaves_of(failure))
    more = f"; and {len(leaves) - _MOST_TOLD} more" if len(leaves) > _MOST_TOLD else ""
    return f"{text}: {'; '.join(f'{one.type}: {one.message}' for one in leaves[:_MOST_TOLD])}{more}"


def without(failure: Failure, secret: str, shown: str) -> Failure:
    """Return a failure in whose messages, notes and details something else stands for a secret, also in its causes and members."""

    def clean(text: str) -> str:
        return text.replace(secret, shown)

    cause = failure.cause
    return msgspec.structs.replace(
        failure,
        message=clean(failure.message),
        notes=tuple(map(clean, failure.notes)),
        details={
            name: clean(each) if isinstance(each, str) else each
            for name, each in failure.details.items()
        },
        cause=None if cause is None else without(cause, secret, shown),
        members=tuple(without(each, secret, shown) for each in failure.members),
    )


def leaves_of(failure: Failure) -> Iterator[Failure]:
    """Yield the exceptions of a group, and those of groups in it; an exception that is none is its own."""
    if not failure.members:
        yield failure
    for member in failure.members:
        yield from leaves_of(member)


class _Capture:
    """One capture: it counts failures and their text, so that no chain or group is followed without end."""

    def __init__(self) -> None:
        self._left = MAX_FAILURES
        self._text_left = MAX_TREE_TEXT
        self._open: set[int] = set()

    def failure(self, error: BaseException) -> Failure:
        """Return the failure of an exception that is not being captured already."""
        self._left -= 1
        self._open.add(id(error))
        try:
            return self._failure(error)
        except BaseException as broken:  # noqa: BLE001  (an author's class may raise anything from any attribute)
            name = _name(type(error))
            return Failure(name, f"<{name}, whose attributes raise {_name(type(broken))}>")
        finally:
            self._open.discard(id(error))

    def _failure(self, error: BaseException) -> Failure:
        origin: Any = vars(error).get(_ORIGIN)
        if not isinstance(origin, Failure):
            origin = Failure(
                type=_name(type(error)),
                message=_message(error),
                bases=_bases(type(error)),
                details=_details(error),
            )
        notes = _notes(error)
        self._text_left -= _size(origin) + sum(map(len, notes))
        parts = _parts(error)
        members = [self.failure(each) for each in parts if self._may(each)]
        if len(members) < len(parts):
            notes = (
                *notes[: _MAX_NOTES - 1],
                f"{len(parts) - len(members)} more exceptions were cut",
            )
        return msgspec.structs.replace(
            origin,
            notes=notes,
            cause=self._cause(error),
            members=tuple(members),
            stack=_stack(error),
        )

    def _cause(self, error: BaseException) -> Failure | None:
        cause = _field(BaseException, "__cause__", error)
        if cause is None and not _field(BaseException, "__suppress_context__", error):
            cause = _field(BaseException, "__context__", error)
        return self.failure(cause) if cause is not None and self._may(cause) else None

    def _may(self, error: BaseException) -> bool:
        left = self._left > 0 and self._text_left > 0
        return left and len(self._open) < _MAX_DEPTH and id(error) not in self._open


def _parts(error: BaseException) -> tuple[BaseException, ...]:
    if _is_a(error, BaseExceptionGroup):
        return _field(BaseExceptionGroup, "exceptions", error)
    return ()


def _field(kind: type[BaseException], name: str, error: BaseException) -> Any:
    """Return a field that Python itself keeps: an author's class may show another one under that name."""
    return getattr(kind, name).__get__(error)


def _is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    return issubclass(type(error), kinds)  # what an error says of its own class may be anything


def _size(origin: Failure) -> int:
    texts = [each for each in origin.details.values() if isinstance(each, str)]
    names = (origin.type, origin.message, *origin.bases, *origin.details)
    return sum(map(len, (*names, *texts)))


def _name(kind: type) -> str:
    try:
        module: Any = kind.__module__
        name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
        return _clean(name, _MAX_NAME)
    except BaseException:  # noqa: BLE001  (a metaclass may raise anything)
        return "an exception whose type has no name"


def _clean(text: Any, most: int = MAX_TEXT) -> str:
    """Return text that UTF-8 can hold, not too long; a lone surrogate is shown as its escape."""
    plain = "".join(str.__iter__(str(text))) if type(text) is not str else text
    if not plain.isascii():
        plain = plain.encode("utf-8", "backslashreplace").decode()
    if len(plain) <= most:
        return plain
    half = most // 2 - 32
    return f"{plain[:half]} … {len(plain) - 2 * half} characters cut … {plain[-half:]}"


def _text(error: BaseException) -> str:
    try:
        return _clean(str(error))
    except BaseException as broken:  # noqa: BLE001  (an author's __str__ may raise anything)
        return f"<{_name(type(error))}, whose text raises {_name(type(broken))}>"


def _message(error: BaseException) -> str:
    if _is_a(error, OutlastError, BaseExceptionGroup):
        return _clean(cast("Any", error).message)
    return _text(error)


def _notes(error: BaseException) -> tuple[str, ...]:
    notes: Any = getattr(error, "__notes__", ())
    if not isinstance(notes, list | tuple):
        return ()
    return tuple(_clean(each) for each in islice(cast("Iterable[Any]", notes), _MAX_NOTES))


def _bases(kind: type) -> tuple[str, ...]:
    names = [_name(each) for each in kind.__mro__[1:] if each.__module__ != "builtins"]
    return tuple(names[:_MAX_BASES])


def _stack(error: BaseException) -> str:
    raised_at = _field(BaseException, "__traceback__", error)
    frames = [_frame(frame, line) for frame, line in traceback.walk_tb(raised_at)]
    if len(frames) > _MAX_FRAMES:
        half = _MAX_FRAMES // 2
        frames = [*frames[:half], f"… {len(frames) - 2 * half} frames cut …", *frames[-half:]]
    return "\n".join(frames)


def _frame(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return _clean(f"{PurePath(code.co_filename).name}:{line} in {code.co_qualname}", _MAX_NAME)


def _details(error: BaseException) -> dict[str, Plain]:
    kind = type(error)
    if _BUILTINS.get(kind.__name__) is kind:
        fields = _arguments(error)
    else:
        hidden = {"message", "__notes__"}
        fields = {
            name: each
            for name, each in vars(error).items()
            if _is_field_name(name) and name not in hidden and name[:1] != "_"
        }
    plain = {name: each for name, each in fields.items() if _is_plain(each)}
    return dict(islice(plain.items(), _MAX_DETAILS))


def _arguments(error: BaseException) -> dict[str, Any]:
    arguments = list(error.args)
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments.append(error.filename)
    if arguments == [_text(error)] or not all(_is_plain(each) for each in arguments):
        return {}
    return {f"{n}": each for n, each in enumerate(arguments)}


def _is_field_name(name: Any) -> bool:
    # The dict of an instance takes any key; what is no name is not kept.
    return type(name) is str and len(name) <= _MAX_NAME and _clean(name) == name


def _is_plain(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= MAX_TEXT and (value.isascii() or _clean(value) == value)
    if type(value) is float:
        return value - value == 0.0
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return value is None or type(value) is bool


def is_too_deep(failure: Failure, depth: int = _MAX_DEPTH) -> bool:
    """Say whether a failure is nested deeper than any that was captured."""
    inner = failure.members if failure.cause is None else (*failure.members, failure.cause)
    return bool(inner) and (depth <= 1 or any(is_too_deep(each, depth - 1) for each in inner))


def rebuild(failure: Failure, raises: tuple[type[BaseException], ...] = ()) -> BaseException:
    """Return an exception like the one that was captured, ready to be raised.

    Args:
        failure: What was captured.
        raises: The types of the author that are rebuilt as themselves. Their constructors are not called. A failure
            of a subclass becomes the nearest base that is among them.
    """
    error = _bare(failure, raises)
    if failure.notes:
        error.__notes__ = list(failure.notes)
    if failure.cause is not None:
        error.__cause__ = rebuild(failure.cause, raises)
    vars(error)[_ORIGIN] = failure
    return error


def _bare(failure: Failure, raises: tuple[type[BaseException], ...]) -> BaseException:
    if failure.members:
        return BaseExceptionGroup(
            failure.message, [rebuild(each, raises) for each in failure.members]
        )
    declared = {_name(each): each for each in raises}
    for name in (failure.type, *failure.bases):
        if name in declared and not issubclass(declared[name], OutlastError):
            return _declared(declared[name], failure)
    if failure.type in _BUILTINS:
        return _builtin(_BUILTINS[failure.type], failure)
    if failure.type in _OWN:
        return _own(_OWN[failure.type], failure)
    if failure.type == _CANCELLED:
        return CancelledError(failure.message) if failure.message else CancelledError()
    return StepFailedError(
        failure.message or failure.type, type_name=failure.type, stack=failure.stack
    )


def _builtin(kind: type[BaseException], failure: Failure) -> BaseException:
    arguments = list(failure.details.values())
    if arguments:
        try:
            error = kind(*arguments)
        except Exception:  # noqa: BLE001  (stored arguments may be anything)
            error = kind()
        if type(error) is kind and _text(error) == failure.message:
            return error
    error = kind(failure.message) if failure.message else kind()
    if _text(error) != failure.message:
        error.args = (_Verbatim(failure.message),)
    return error


class _Verbatim(str):
    """The argument of a `KeyError`, which shows the repr of it, where the original key is not known."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _own(kind: type[OutlastError], failure: Failure) -> BaseException:
    error = kind(failure.message)
    known = vars(error)
    for name, each in failure.details.items():
        if name in known and (known[name] is None or type(known[name]) is type(each)):
            known[name] = each
    return error


def _declared(kind: type[BaseException], failure: Failure) -> BaseException:
    """Return an instance of an author's type without running its constructor."""
    base: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    error = cast("BaseException", base.__new__(kind))
    error.args = (failure.message,)
    vars(error).update(failure.details)
    try:
        shown = str(error)
    except Exception:  # noqa: BLE001  (it may need what the constructor sets)
        shown = None
    if shown != failure.message:
        _show(error, failure)
    return error


def _show(error: BaseException, failure: Failure) -> None:
    """Give an instance, whose own `__str__` lacks what its constructor sets, the text that was captured."""
    kind = type(error)

    def text(_: BaseException) -> str:
        return failure.message

    def reduced(_: BaseException) -> tuple[Any, ...]:
        return (_declared, (kind, failure))

    names = {"__str__": text, "__reduce__": reduced, "__module__": kind.__module__}
    try:
        error.__class__ = type(kind.__name__, (kind,), {**names, "__qualname__": kind.__qualname__})
    except TypeError:  # a class with slots, or one that may have no subclass, keeps its own text
        return
