"""Exceptions as data: captured whatever they do, rebuilt only where the code names the type."""

import asyncio
import copy
import pickle
import sys
from typing import Any

import msgspec
import pytest

from outlast.errors import (
    ApprovalDeniedError,
    EncodeError,
    OutlastError,
    StepFailedError,
    WorkflowFailedError,
)
from outlast.journal.failure import (
    MAX_FAILURES,
    MAX_TEXT,
    Failure,
    capture,
    rebuild,
    tell,
    without,
)


class HttpError(Exception):
    """An error whose constructor needs more than a message, and whose text needs what it sets."""

    def __init__(self, code, detail):
        super().__init__()
        self.code = code
        self.detail = detail

    def __str__(self):
        return f"{self.code}: {self.detail['text']}"


class GoneError(HttpError):
    pass


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Hostile(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(name)


class Exiting(Exception):
    def __str__(self):
        raise SystemExit(3)


class Closing(Exception):
    def __getattribute__(self, name):
        raise GeneratorExit(name)


class Payment(OSError):
    pass


def raised(error: BaseException) -> BaseException:
    """Return the exception with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def plain(failure: Failure) -> Failure:
    """Return the failure without stacks."""
    return msgspec.structs.replace(
        failure,
        stack="",
        cause=failure.cause and plain(failure.cause),
        members=tuple(plain(each) for each in failure.members),
    )


def through(error: BaseException) -> Failure:
    """Return what is captured, after it was JSON."""
    failure = capture(raised(error))
    data = msgspec.json.encode(failure)
    back = msgspec.json.decode(data, type=Failure)
    assert back == failure
    return back


def chained() -> BaseException:
    """Return an error with a cause, a context and notes."""
    try:
        try:
            raise KeyError("k")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        outer.add_note("note")
        return outer


BUILTINS: list[BaseException] = [
    ValueError(),
    ValueError("x"),
    ValueError("a", 1),
    ValueError("é\nx"),
    KeyError("key"),
    KeyError("a", 3),
    KeyError(object),
    KeyError(),
    IndexError("i"),
    LookupError("l"),
    TypeError("t"),
    TimeoutError(),
    ConnectionError("c"),
    ConnectionResetError(104, "reset"),
    RuntimeError("r"),
    OSError("only text"),
    OSError(2, "No such file", "/tmp/x"),
    FileNotFoundError(2, "No such file", "/tmp/x"),
    PermissionError(13, "denied"),
    ArithmeticError("a"),
    ZeroDivisionError("z"),
    AssertionError("a"),
    AttributeError("a"),
    NotImplementedError("n"),
    asyncio.CancelledError(),
    asyncio.CancelledError("why"),
]


@pytest.mark.parametrize("error", BUILTINS, ids=repr)
def test_builtins_are_rebuilt_as_themselves(error):
    """Python's own exceptions come back with type, text and arguments."""
    back = rebuild(through(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    if str(error) != str(KeyError(object)):
        assert back.args == error.args


def test_the_key_of_a_key_error_comes_back():
    """`error.args[0]` is the key, not the quoted text."""
    assert rebuild(through(KeyError("key"))).args == ("key",)


ALL: list[tuple[BaseException, tuple[type[BaseException], ...]]] = [
    *((each, ()) for each in BUILTINS),
    (HttpError(404, {"text": "gone"}), ()),
    (HttpError(404, {"text": "gone"}), (HttpError,)),
    (GoneError(404, {"text": "gone"}), (HttpError,)),
    (Payment(1, "x"), (Payment,)),
    (Mute(), ()),
    (Mute(), (Mute,)),
    (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), ()),
    (KeyboardInterrupt(), ()),
    (SystemExit(3), ()),
    (ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError(3)])]), ()),
    (BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("a")]), ()),
    (ExceptionGroup("g", [HttpError(1, {"text": "t"})]), (HttpError,)),
    (ApprovalDeniedError("no", by="me", reason="late", hint="ask", run="r1", step="s"), ()),
    (EncodeError("no", path="$.a"), ()),
    (StepFailedError("direct", hint="h"), ()),
    (StepFailedError("x", type_name="httpx.ConnectError", stack="s"), ()),
    (ValueError("\ud800 text"), ()),
    (ValueError("x" * 100_000), ()),
    (chained(), ()),
]


@pytest.mark.parametrize(("error", "raises"), ALL, ids=lambda each: repr(each)[:40])
def test_law_capture_after_rebuild(error, raises):
    """Capturing a rebuilt failure gives the same failure, its stack apart; the rebuilt one can be copied and pickled."""
    failure = through(error)
    back = raised(rebuild(failure, raises))
    assert plain(capture(back)) == plain(failure)
    assert str(copy.copy(back)) == str(back)
    assert str(pickle.loads(pickle.dumps(back))) == str(back)


def test_other_types_arrive_as_step_failed():
    """A type that the code does not name selects nothing: its name is kept as text."""
    failure = through(HttpError(404, {"text": "gone"}))
    back = rebuild(failure)
    assert type(back) is StepFailedError
    assert back.type_name == failure.type == f"{__name__}.HttpError"
    assert back.message == "404: gone"
    assert "test_failure.py" in back.stack
    assert type(rebuild(Failure("os.system", "rm"))) is StepFailedError
    assert type(rebuild(Failure("outlast.errors.Any", "rm"))) is StepFailedError
    assert type(rebuild(Failure("KeyboardInterrupt", ""))) is StepFailedError


def test_a_declared_type_is_rebuilt_without_its_constructor():
    """`except HttpError` works for it and its subclasses; text and plain attributes are there."""
    for error in (HttpError(404, {"text": "gone"}), GoneError(404, {"text": "gone"})):
        back = rebuild(through(error), (HttpError,))
        assert isinstance(back, HttpError)
        assert str(back) == "404: gone"
        assert back.code == 404
        assert back.args == ("404: gone",)
    assert isinstance(rebuild(through(Payment(1, "x")), (Payment,)), Payment)


def test_own_errors_are_rebuilt_with_their_fields():
    """Outlast's errors keep what they say; fields of other names or types are passed over."""
    error = ApprovalDeniedError("no", by="me", reason="late", hint="ask", run="r1", step="s")
    back = rebuild(through(error))
    assert type(back) is ApprovalDeniedError
    assert vars(back).items() >= vars(error).items()
    assert str(back) == str(error)
    odd = Failure(
        "outlast.errors.ApprovalDeniedError", "no", details={"by": 3, "evil": 1, "args": 1}
    )
    assert rebuild(odd).by == ""
    assert not hasattr(rebuild(odd), "evil")


def test_every_own_error_is_rebuilt():
    """No error of the tree needs more than a message."""
    waiting = [OutlastError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__ == "outlast.errors":
            assert type(rebuild(through(kind("m")))) is kind


def test_groups_are_rebuilt_with_their_members():
    """`except*` finds the members, by the types that are rebuilt."""
    group = ExceptionGroup("g", [ValueError("a"), HttpError(1, {"text": "t"})])
    back = rebuild(through(group), (HttpError,))
    assert str(back) == str(group)
    assert back.split(HttpError)[0] is not None
    assert back.split(ValueError)[0] is not None


def test_notes_and_cause_are_restored():
    """Notes and the chain come back, a context as a cause."""
    back = rebuild(through(chained()))
    assert back.__notes__ == ["note"]
    assert type(back.__cause__) is KeyError
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            raise ValueError("x")
    except ValueError as error:
        context = error
    assert type(rebuild(through(context)).__cause__) is ZeroDivisionError
    context.__suppress_context__ = True
    assert rebuild(through(context)).__cause__ is None


def test_the_cause_of_a_failed_workflow_is_kept():
    """A cause of a declared type is rebuilt too."""
    error = WorkflowFailedError("failed", run="r")
    error.__cause__ = HttpError(1, {"text": "t"})
    assert isinstance(rebuild(through(error), (HttpError,)).__cause__, HttpError)


def test_the_stack_has_no_source_and_no_values():
    """A frame is a file name, a line and a function; a long stack loses its middle."""
    secret = "s3cret"

    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError(len(secret))

    with pytest.raises(ValueError) as caught:
        deep(200)
    lines = capture(caught.value).stack.splitlines()
    assert len(lines) == 41
    assert "frames cut" in lines[20]
    assert lines[-1].startswith("test_failure.py:")
    assert lines[-1].endswith("deep")
    assert not any("s3cret" in each or "/" in each for each in lines)


def test_capture_never_raises():
    """Text that raises, attributes that raise, surrogates, odd notes and endless chains are all captured."""
    assert "text raises RuntimeError" in capture(Mute()).message
    assert "attributes raise RuntimeError" in capture(Hostile()).message
    assert "text raises SystemExit" in capture(Exiting()).message
    assert "attributes raise GeneratorExit" in capture(Closing()).message
    assert capture(ValueError("\ud800")).message == "\\ud800"
    odd = ValueError("x")
    odd.__notes__ = 3
    assert capture(odd).notes == ()
    odd.__notes__ = [Mute(), "\ud800"]
    capture(odd)
    loop = ValueError("a")
    loop.__cause__ = KeyError("b")
    loop.__cause__.__cause__ = loop
    assert capture(loop).cause == msgspec.structs.replace(capture(loop.__cause__), cause=None)


def test_texts_are_bounded():
    """A long message loses its middle and says how much."""
    message = capture(ValueError("a" * MAX_TEXT + "b" * MAX_TEXT)).message
    assert len(message) <= MAX_TEXT
    assert message.startswith("aaa")
    assert message.endswith("bbb")
    assert "characters cut" in message


def test_chains_and_groups_are_bounded():
    """Neither a long chain, nor a wide group, nor one exception held many times, is followed without end."""
    first: Any = ValueError("0")
    for n in range(10_000):
        nxt = ValueError(str(n))
        nxt.__cause__ = first
        first = nxt
    assert count(through(first)) <= MAX_FAILURES
    wide = through(ExceptionGroup("g", [ValueError(str(n)) for n in range(5_000)]))
    assert count(wide) <= MAX_FAILURES
    assert "more exceptions were cut" in wide.notes[-1]
    error: Exception = ValueError("leaf")
    for _ in range(15):
        error = ExceptionGroup("g", [error, error])
    assert count(through(error)) <= MAX_FAILURES
    assert sys.getsizeof(msgspec.json.encode(through(error))) < 100_000


def count(failure: Failure) -> int:
    """Return how many failures are in the tree."""
    return 1 + sum(map(count, failure.members)) + (count(failure.cause) if failure.cause else 0)


def test_hostile_failures_are_rebuilt():
    """A stored failure of any content gives an exception, and never another one."""
    for failure in (
        Failure("OSError", "x", details={"0": 1, "1": 2, "2": 3, "3": 4, "4": 5}),
        Failure("ValueError", "x", details={"0": "other"}),
        Failure("FileNotFoundError", "x", details={"0": 13, "1": "denied"}),
        Failure("ExceptionGroup", "x"),
        Failure("ValueError", "x", members=(Failure("KeyError", ""),)),
        Failure("", ""),
        Failure(f"{__name__}.HttpError", "m", details={"code": None, "__class__": 1, "args": 1}),
    ):
        error = rebuild(failure, (HttpError,))
        assert isinstance(error, BaseException)
        str(error)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("down"), "OSError: down"),
        (
            ExceptionGroup("in a group", [OSError("down")]),
            "ExceptionGroup: in a group: OSError: down",
        ),
        (
            ExceptionGroup(
                "outer",
                [ExceptionGroup("inner", [OSError("a"), KeyError("b")]), ValueError("c")],
            ),
            "ExceptionGroup: outer: OSError: a; KeyError: 'b'; ValueError: c",
        ),
        (
            ExceptionGroup("many", [OSError(str(n)) for n in range(7)]),
            "ExceptionGroup: many: OSError: 0; OSError: 1; OSError: 2; and 4 more",
        ),
    ],
)
def test_a_group_is_told_with_what_failed_in_it(error, told):
    """Its own message says how it was gathered, and its members why."""
    assert tell(capture(error)) == told


def test_a_secret_is_in_no_part_of_a_failure() -> None:
    """Messages, notes and details, also of causes and members; what else there is stays."""
    cause = OSError(5, "the key s3cr3t is in use")
    group = ExceptionGroup("all of s3cr3t", [ValueError("s3cr3t-part", 1), KeyError("other")])
    group.add_note("about s3cr3t")
    group.__cause__ = cause
    failure = capture(group)
    shown = without(failure, "s3cr3t", "<key>")
    assert "s3cr3t" in repr(failure) and "s3cr3t" not in repr(shown)
    assert shown.cause is not None and shown.cause.details == {
        "0": 5,
        "1": "the key <key> is in use",
    }
    assert shown.notes == ("about <key>",) and shown.stack == failure.stack
    assert without(failure, "nowhere", "<key>") == failure
