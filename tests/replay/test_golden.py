"""Every golden journal replays from every prefix to where its run stood; the set is complete, and not stale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import workflows as flows
from scenarios import JOURNALS, SCENARIOS, play

import outlast
from outlast.errors import DecodeError, DefinitionError, NonDeterminismError, RunNotFoundError
from outlast.journal.entry import KINDS
from outlast.journal.failure import _BUILTINS
from outlast.testing import Simulation
from outlast.testing.golden import VOLATILE, Golden, record
from outlast.workflows.definition import Workflow
from outlast.workflows.registry import Registry

FOLDER = Path(__file__).parent / "journals"
NEWEST = sorted(JOURNALS.glob("*.json"))
EVERY = sorted(FOLDER.glob("v*/*.json"))


def read(file: Path) -> Golden:
    """Return the golden journal in a file."""
    return Golden.from_json(file.read_text(encoding="utf-8"))


def read_named(name: str) -> Golden:
    """Return one of the newest golden journals."""
    return read(JOURNALS / f"{name}.json")


@pytest.mark.parametrize(
    "file", EVERY, ids=lambda file: file.relative_to(FOLDER).with_suffix("").as_posix()
)
def test_a_golden_journal_replays_from_every_prefix(file: Path) -> None:
    """The code of today asks for the same, waits for the same and ends the same, on this interpreter."""
    golden = read(file)
    assert len(golden.stands) == len({row.turn for row in golden.rows})
    golden.check(Registry(flows.CODE))


@pytest.mark.parametrize("name", SCENARIOS)
def test_recording_again_gives_the_same_text(name: str) -> None:
    """Rows and stands are equal to the byte, but for who recorded them: python, library and stacks."""
    kept, today = read_named(name), play(name)
    assert today.steady().to_json() == kept.steady().to_json()
    assert Golden.from_json(today.to_json()) == today


def test_every_scenario_has_its_journal_and_the_reverse() -> None:
    """Nothing is forgotten, and nothing lies about."""
    assert {file.stem for file in NEWEST} == set(SCENARIOS)
    declared = {one.name for one in flows.CODE if isinstance(one, Workflow)}
    assert {one.workflow for one in map(read, NEWEST)} == declared


def test_every_kind_of_entry_occurs() -> None:
    """A new kind comes with a scenario here."""
    assert {row.kind for file in NEWEST for row in read(file).rows} == set(KINDS)


def test_every_command_every_alarm_and_every_rebuilt_type_occurs() -> None:
    """So do turns of several messages, operations that were given up, and messages that nobody took yet."""
    goldens = [read(file) for file in NEWEST]
    stands = [stand for golden in goldens for stand in golden.stands]
    commands = {
        one["command"]["do"]
        for stand in stands
        for one in stand.get("operations", {}).values()
        if one["command"]
    }
    assert commands == {
        "RunStep", "IntendEffect", "SettleEffect", "StartTimer", "RequestApproval", "AwaitDecision",
        "PublishValue",
        "AnswerUpdate",
        "StartChild", "SendMessage", "WatchRun", "AwaitRun",
    }  # fmt: skip
    bodies = [json.loads(row.body) for golden in goldens for row in golden.rows]
    assert {one["what"] for one in bodies if one["type"] == "alarm_raised"} == {
        "late_outcome", "late_decision", "unfit_message", "unreadable_message",
    }  # fmt: skip
    failed = {one["failure"]["type"] for one in bodies if one["type"] == "step_failed"}
    assert failed >= set(_BUILTINS)
    assert any(len({row.turn for row in golden.rows}) < len(golden.rows) for golden in goldens), (
        "no turn has two entries"
    )
    for part in ("given_up", "receivers", "unread", "conditions", "draws", "closed", "handlers"):
        assert any(part in stand for stand in stands), part


def test_code_that_asks_for_something_else_is_noticed() -> None:
    """The error says after which turn, of which operation, and shows both sides."""

    @outlast.workflow(name="denied")
    async def changed() -> list[str]:
        await flows.double(1)
        return []

    with pytest.raises(NonDeterminismError, match="(?s)after 2 turns .* approval at r:1") as caught:
        read_named("denied").check(Registry([*_without("denied"), changed]))
    assert '    run:    {"kind":"approval"' in caught.value.message
    assert '    replay: {"kind":"step","name":"double"' in caught.value.message


def test_a_later_difference_is_noticed() -> None:
    """Not only what the journal answers: also what the run would have done next, and its result."""
    golden = read_named("retries")
    *before, last = golden.stands
    tampered = msgspec.structs.replace(
        golden, stands=(*before, {**last, "outcome": {"completed": "0"}})
    )
    with pytest.raises(NonDeterminismError, match="outcome"):
        tampered.check(Registry(flows.CODE))


def _without(name: str) -> list[object]:
    return [one for one in flows.CODE if one.name != name]


def test_a_file_of_another_format_is_refused() -> None:
    """And so is what is no golden journal."""
    text = (JOURNALS / "denied.json").read_text(encoding="utf-8")
    for wrong in (text.replace('"format": 1', '"format": 2'), text[:-9], "[]"):
        with pytest.raises(DecodeError):
            Golden.from_json(wrong)


def test_a_deep_file_is_refused() -> None:
    """However deep the values in it are nested, the error is ours."""
    text = (JOURNALS / "denied.json").read_text(encoding="utf-8")
    deep = text.replace(
        '"stands": [', '"stands": [{"unread": ' + "[" * 5_000 + "]" * 5_000 + "},", 1
    )
    assert deep != text
    with pytest.raises(DecodeError, match="deeper"):
        Golden.from_json(deep)


def test_a_journal_that_is_not_whole_is_refused() -> None:
    """Without rows, or without a stand for each turn, nothing or too little would be compared: neither read nor checked."""
    golden = read_named("denied")
    for rows, stands in (
        ((), ()),
        (golden.rows, ()),
        (golden.rows, golden.stands[:-1]),
        (golden.rows, (*golden.stands, {})),
        ((), golden.stands),
    ):
        partial = msgspec.structs.replace(golden, rows=rows, stands=stands)
        with pytest.raises(DecodeError, match="stands"):
            Golden.from_json(partial.to_json())
        with pytest.raises(DecodeError, match="stands"):
            partial.check(Registry(flows.CODE))


def test_a_plain_export_is_no_golden_journal() -> None:
    """It says how to make one of the run."""
    plain = msgspec.structs.replace(read_named("denied"), stands=())
    with pytest.raises(DecodeError, match="no stands, where the code stood") as caught:
        Golden.from_json(plain.to_json())
    assert "outlast runs export RUN --module MODULE" in caught.value.hint


def test_a_workflow_that_the_code_does_not_have_is_named() -> None:
    """The error says which workflows there are."""
    with pytest.raises(DefinitionError, match="no workflow 'denied'; it has .*'approved'"):
        read_named("denied").check(Registry(_without("denied")))
    with pytest.raises(DefinitionError, match="no workflow at all"):
        read_named("denied").check(Registry([]))


def test_a_generation_that_never_was_is_not_recorded() -> None:
    """There is nothing to record of it."""

    @outlast.workflow
    async def ends() -> None:
        """Do nothing."""

    async def scenario(sim: Simulation) -> None:
        await sim.start_worker()
        await sim.client.start(ends(), id="r")
        await sim.closed("r")
        await record(sim.store, "r", registry=Registry([ends]), generation=2)

    with pytest.raises(RunNotFoundError, match="generation 2"):
        Simulation([ends]).run(scenario)


def test_only_named_fields_are_volatile() -> None:
    """Everything else of a body is compared to the byte, whatever characters it holds."""
    golden = read_named("group_fails")
    steady = [json.loads(row.body) for row in golden.steady().rows]
    assert VOLATILE == ("python", "library", "stack")
    for row, body in zip(golden.rows, steady, strict=True):
        assert _blank(json.loads(row.body)) == body
    assert any(row.body.count('"stack":"') > 1 for row in golden.rows)


def _blank(value: object) -> object:
    if isinstance(value, dict):
        return {key: "" if key in VOLATILE else _blank(one) for key, one in value.items()}
    return [_blank(one) for one in value] if isinstance(value, list) else value


SET_ORDER = """
import sys
from collections.abc import Iterable
import outlast
from outlast.testing import Simulation, always_replay
from outlast.testing.golden import Golden, record
from outlast.workflows.registry import Registry

def names() -> Iterable[str]:
    return {"ann", "bob", "cleo", "dan", "eve", "fred", "gil", "hal"}

@outlast.step
async def greet(name: str) -> str:
    return f"hello {name}"

@outlast.workflow
async def greet_all() -> list[str]:
    return [await greet(name) for name in names()]

CODE = [greet, greet_all]

async def scenario(sim):
    await sim.start_worker()
    await sim.client.start(greet_all(), id="r")
    await sim.closed("r")
    return await record(sim.store, "r", registry=Registry(CODE))

if sys.argv[1] == "record":
    with always_replay():
        print(Simulation(CODE).run(scenario).to_json())
else:
    Golden.from_json(sys.stdin.read()).check(Registry(CODE))
"""


def test_the_order_of_a_set_is_found_by_another_process(tmp_path: Path) -> None:
    """In one process a set of text has one order, so always-replay finds nothing; under another hash seed the golden journal does."""
    (tmp_path / "flow.py").write_text(SET_ORDER)

    def run(what: str, seed: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "flow.py", what],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )

    recorded = run("record", "1")
    assert recorded.returncode == 0, recorded.stderr
    assert run("check", "1", recorded.stdout).returncode == 0
    other = run("check", "2", recorded.stdout)
    assert other.returncode == 1
    assert "NonDeterminismError: after 2 turns (the last is Taken)" in other.stderr
    assert "step greet at r:1" in other.stderr
