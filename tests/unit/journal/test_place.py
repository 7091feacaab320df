"""Where a failure came from: the author's innermost frame, in the step that raised it."""

from __future__ import annotations

from msgspec import Raw

from outlast.journal.entry import OperationId, StepCompleted, StepFailed
from outlast.journal.failure import Failure
from outlast.journal.place import origin_of, place_of

AWAITED = "agent.py:15 in flow\nagent.py:12 in helper\ncall.py:100 in Call._waiting"
RAISED = "call.py:31 in call_async\nagent.py:7 in fetch\nagent.py:4 in deep"


def test_the_librarys_frames_are_not_the_place() -> None:
    """The innermost frame of the author's code counts; a file of theirs with a name of ours is theirs."""
    assert place_of(Failure("E", "m", stack=AWAITED)) == "agent.py:12 in helper"
    assert (
        place_of(Failure("E", "m", stack="agent.py:1 in f\ncall.py:3 in ring"))
        == "call.py:3 in ring"
    )
    assert (
        place_of(Failure("E", "m", stack="machine.py:539 in Machine._outcome_of\n… 3 frames cut …"))
        == ""
    )
    for stack in (
        "agent.py:1 in f\napproval.py:119 in approval",
        "agent.py:1 in f\napproval.py:119 in approval.<locals>.of",
        "agent.py:1 in f\ncall.py:183 in Call._waiting\neffects.py:137 in Effects._begin\nledger.py:361 in EffectLedger.find_cover",
    ):
        assert place_of(Failure("E", "m", stack=stack)) == "agent.py:1 in f"
    theirs = "approval.py:7 in approval_of_invoices"
    assert place_of(Failure("E", "m", stack=f"agent.py:1 in f\n{theirs}")) == theirs
    assert place_of(Failure("E", "m")) == ""


def test_a_group_has_the_place_of_a_member() -> None:
    """The first member that knows one."""
    members = (Failure("E", "m"), Failure("E", "n", stack=RAISED))
    assert place_of(Failure("ExceptionGroup", "g", members=members)) == "agent.py:4 in deep"


def test_the_step_that_raised_it_is_named() -> None:
    """The step's own stack says more than where the workflow awaited it."""
    failed = StepFailed(OperationId("r:1"), "fetch", Failure("KeyError", "'k'", stack=RAISED))
    done = StepCompleted(OperationId("r:2"), "other", Raw(b"1"))
    end = Failure("KeyError", "'k'", stack=AWAITED)
    words = "at agent.py:4 in deep, by fetch (r:1), awaited at agent.py:12 in helper"
    assert origin_of(end, [failed, done]) == words
    group = Failure("ExceptionGroup", "g", members=(Failure("KeyError", "'k'"),))
    assert origin_of(group, [failed]) == "at agent.py:4 in deep, by fetch (r:1)"
    assert origin_of(end, [done]) == "at agent.py:12 in helper"
    assert origin_of(Failure("KeyError", "'k'"), [done]) == ""
