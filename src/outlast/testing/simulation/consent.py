"""Whether a valid yes stood when an effect was intended, judged by what was written alone.

It shares no rule with gate, store and machine: roles, orders to stop, hashes, votes and terms are read as JSON and judged in plain Python,
so that a fault of theirs is not repeated here. All of it is invariant 6.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

from outlast.approvals.likeness import of_objects
from outlast.journal.asking import Vote
from outlast.journal.entry import EffectInDoubt, EffectIntended, Forked, Started, from_row
from outlast.store.change import (
    ApprovalExpire,
    ApprovalPut,
    Decide,
    OperationPut,
    PutControl,
    RunChange,
    RunKey,
)
from outlast.testing.simulation.forked import is_known
from outlast.testing.simulation.model import Check, Run
from outlast.testing.simulation.stuck import Place, StickyJudge

_SLACK = timedelta(seconds=1)
"""A worker knows the store's time about so well."""


@dataclass(frozen=True, slots=True)
class Want:
    """A yes without which an effect may not begin, whatever its code asks."""

    role: str
    quorum: int = 1
    four_eyes: bool = False


@dataclass(slots=True)
class _Asked:
    """A request, and what was said of it.

    Args:
        shown: What the row shows: the entry of the request, as JSON.
        voters: Who has said yes, each with whose delegate they were.
        editor: Who wanted something else, in the same way, and by its place among the covers what.
        spent: By its place, the operation to which a cover was spent.
    """

    put: ApprovalPut
    shown: dict[str, Any]
    state: str = "pending"
    voters: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    editor: tuple[str, str] = ("", "")
    edits: dict[int, Any] = field(default_factory=dict[int, Any])
    spent: dict[int, str] = field(default_factory=dict[int, str])

    def vote(self, by: str, behalf: str) -> None:
        """Take in a yes."""
        self.voters.append((by, behalf))
        terms = self.put.terms
        if len(self.voters) >= (1 if terms is None else terms.quorum):
            self.state = "approved"

    @property
    def sticky(self) -> list[Vote]:
        """The yeses with which it was made that were said of something before."""
        return [vote for vote in self.put.votes if vote.sticky]

    @property
    def persons(self) -> set[str]:
        """Everybody who has said yes."""
        return {one for pair in self.voters for one in pair if one}


class Consent:
    """The judge of one simulation. It is told of what was written, in order.

    Its fields are what cannot be read from the changes, and are set before anything happens.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self.sticky = StickyJudge(check)
        """Of the decisions that stick."""
        self.wants: Callable[[str, dict[str, Any]], Iterable[Want]] = lambda _name, _arguments: ()
        """Which consent an effect needs, by its name and arguments."""
        self.denies: Callable[[str, dict[str, Any]], bool] = lambda _name, _arguments: False
        """What the policy of the workers denies."""
        self.by_roles = False
        """Whether the roles in the store count; where they do not, everybody holds every role."""
        self.local = ""
        """Who holds every role where none were ever set."""
        self.within = timedelta(0)
        """How long a role may have been over: so old what was found out may be."""
        self.steady = False
        """Whether nobody sets the store's clock: then deadlines are looked at."""
        self.counts = {"intended": 0, "asked": 0, "yes": 0, "no": 0, "edit": 0, "stop": 0}
        """How often what happened: for whoever doubts that anything did."""
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._stopped_at: dict[tuple[str, str], datetime] = {}
        self._requests: dict[RunKey, dict[str, _Asked]] = {}

    # What is told

    def control(self, change: PutControl, now: datetime) -> None:
        """Roles were changed, or orders to stop."""
        place = change.tenant, change.name
        self._rows[place] = _read(change.body)
        if change.name == "stops":
            self.counts["stop"] += 1
            if not self._rows[place].get("stops"):
                self._stopped_at.pop(place, None)
            else:
                self._stopped_at.setdefault(place, now)

    def begun(self, key: RunKey) -> None:
        """A run, or a generation of it, begins: nobody has been asked."""
        self._requests[key] = {}

    def decided(self, run: Run, change: Decide, now: datetime) -> None:
        """A decision was taken, which is not the same one again."""
        says = partial(self._check, invariant=6, run=change.run, at=change.approval_id)
        asked = self._requests.get(change.run, {}).get(change.approval_id)
        if asked is None:
            says(False, what=f"{change.by} decided what nobody asks")
            return
        says(asked.state == "pending", what=f"{change.by} decided what is {asked.state}")
        says(now < asked.put.expires_at, what=f"{change.by} decided too late")
        seen = change.seen_sha256 == _sha256(asked.shown["subject"])
        says(seen, what=f"{change.by} decided on another hash")
        persons = {change.by, change.behalf} - {""}
        self._check_held(run, change.run, asked, (change.by, change.behalf), now)
        self.sticky.made(_place(run, change.run), change, asked.put, asked.shown, now)
        if not (change.approved or change.edit):
            self.counts["no"] += 1
            asked.state = "denied"
            return
        kept_out = self._kept_out(run, asked)
        says(not persons & kept_out, what=f"{change.by} may not say yes to it")
        if change.approved:
            self.counts["yes"] += 1
            says(not persons & asked.persons, what=f"{change.by} has said yes twice")
            asked.vote(change.by, change.behalf)
            return
        self.counts["edit"] += 1
        terms = asked.put.terms
        says(terms is not None and terms.edits != "no", what=f"{change.by} edited it")
        asked.state, asked.editor = "edited", (change.by, change.behalf)
        said = json.loads(change.message.body)
        asked.edits = {one["cover"]: one["arguments"] for one in said["edits"]}

    def written(self, run: Run, change: RunChange, now: datetime) -> None:
        """A change of a run was written; its entries are in the journal."""
        requests = self._requests.setdefault(change.run, {})
        for act in change.approvals:
            if isinstance(act, ApprovalPut):
                self._put(run, change.run, requests, act, now)
                continue
            asked = requests.get(act.approval_id)
            if asked is not None and asked.state == "pending":
                asked.state = "expired" if isinstance(act, ApprovalExpire) else "withdrawn"
        for entry in map(from_row, change.entries):
            if isinstance(entry, EffectIntended):
                self._intended(run, change, entry, now)
        for row in change.operations:
            if isinstance(row, OperationPut) and _announces(row) and row.operation in run.intents:
                self._attempted(run, change.run, run.intents[row.operation], now)
        if change.next:
            self.begun(change.run)

    def stopped_for(self, key: RunKey, name: str, now: datetime) -> timedelta:
        """Return for how long an effect of this name has been stopped, at least."""
        since = [
            self._stopped_at[tenant, "stops"]
            for tenant in ("", key.tenant)
            if any(_stops(one, name) for one in self._orders(tenant))
        ]
        return max((now - one for one in since), default=timedelta(0))

    # Requests

    def _put(
        self,
        run: Run,
        key: RunKey,
        requests: dict[str, _Asked],
        put: ApprovalPut,
        now: datetime,
    ) -> None:
        self.counts["asked"] += 1
        says = partial(self._check, invariant=6, run=key, at=put.approval_id)
        shown: dict[str, Any] = json.loads(put.body)
        asked = _Asked(put, shown)
        former = [one for one in requests.values() if one.put.operation == put.operation]
        says(put.approval_id not in requests, what="it was asked twice")
        says(put.subject_sha256 == _sha256(shown["subject"]), what="its hash is another one")
        covers = [one["match"] for one in _covers(shown)]
        says(covers == [one.match_sha256 for one in put.covers], what="it covers what is not shown")
        self._check_follows(key, asked, former[-1] if former else None, now)
        if asked.sticky:
            self.sticky.answered(_place(run, key), put, shown, now)
            kept_out = self._kept_out(run, asked)
            persons = {one for vote in put.votes for one in (vote.by, vote.behalf)} - {""}
            says(not persons & kept_out, what=f"{kept_out} may not say yes to it, whatever sticks")
        for vote in put.votes:
            asked.vote(vote.by, vote.behalf)
        requests[put.approval_id] = asked

    def _check_follows(
        self, key: RunKey, asked: _Asked, former: _Asked | None, now: datetime
    ) -> None:
        """A request that follows another one is made of that, and of nothing that nobody has said."""
        says = partial(self._check, invariant=6, run=key, at=asked.put.approval_id)
        again, put = asked.shown.get("again", ""), asked.put
        votes = [(one.by, one.behalf) for one in put.votes]
        editor = former.editor if former is not None and former.state == "edited" else ("", "")
        terms = put.terms
        by_edit = (
            terms is not None and terms.edits == "yes" and not asked.shown.get("preconditions")
        )
        is_said = not votes or (votes == [editor] and by_edit) or bool(asked.sticky)
        says(is_said, what="nobody has said yes to it yet")
        if former is None or again in ("", "changed"):
            self._check_times(key, asked, now)
            return
        if editor != ("", "") and again == "edited":
            says(votes or {*editor} - {""} <= {*put.barred}, what="its editor may say yes to it")
            actions = [one["arguments"] for one in _covers(asked.shown)]
            right = all(actions[place] == one for place, one in former.edits.items())
            says(right, what="it asks for something else than its editor wants")
        if again == "escalated":
            says(former.state == "expired", what="it is escalated, and the former is not over")
            says(asked.shown.get("rung", 0) == former.shown.get("rung", 0) + 1, what="wrong rung")
            self._check_times(key, asked, now)
        elif editor != ("", "") or again == "unfit":
            kept = (put.expires_at, put.use_by) == (former.put.expires_at, former.put.use_by)
            says(kept, what="its time is longer than that of the former")
        if former.state in ("edited", "expired") or again == "unfit":
            says({*former.put.barred} <= {*put.barred}, what="who was barred is not any more")
            says(terms == former.put.terms, what="its terms are not those of the former")

    def _check_times(self, key: RunKey, asked: _Asked, now: datetime) -> None:
        terms, put = asked.put.terms, asked.put
        if terms is None or not self.steady:
            return
        says = partial(self._check, invariant=6, run=key, at=put.approval_id)
        rung: int = asked.shown.get("rung", 0)
        later = terms.escalate[rung - 1] if rung else None
        role = terms.role if later is None else later.role
        expires_in = terms.expires_in if later is None else later.expires_in
        says(put.role == role, what=f"{put.role} is asked, and {role} is to be")
        says(put.expires_at <= now + expires_in + _SLACK, what="there is too much time to decide")
        within = expires_in if terms.use_within is None else terms.use_within
        says(put.use_by <= now + within + _SLACK, what="there is too much time to begin")

    # Effects

    def _intended(self, run: Run, change: RunChange, intent: EffectIntended, now: datetime) -> None:
        at, key = intent.operation, change.run
        doubts = (from_row(row) for row in change.entries)
        is_doubtful = any(isinstance(one, EffectInDoubt) and one.operation == at for one in doubts)
        if is_known(change, at) or is_doubtful:
            # Nothing begins by it.
            return
        self.counts["intended"] += 1
        arguments = json.loads(bytes(intent.effective))
        says = partial(self._check, invariant=6, run=key, at=at)
        self._check_free(key, intent, arguments)
        if intent.compensates:
            return
        self._check_may(run, key, intent, now)
        found = self._requests[key]
        named = [(one, 0) for one in intent.asked]
        named += [] if intent.grant is None else [(intent.grant.approval_id, intent.grant.cover)]
        held: list[_Asked] = []
        for approval_id, place in named:
            asked = found.get(approval_id)
            says(asked is not None, what=f"{approval_id} was never asked of this run")
            if asked is not None:
                self._check_yes(run, key, intent, asked, place, now)
                held.append(asked)
        if not named:
            requested = json.loads(bytes(intent.requested))
            says(
                # A hook of a policy may have narrowed them.
                bool(intent.policy_version) or arguments == requested,
                what="it is not what the run asks for, and nobody was asked",
            )
        for want in self.wants(intent.name, arguments):
            right = any(_meets(one, want) for one in held)
            says(right, what=f"{intent.name} begins, and nobody has said yes as {want}")

    def _check_yes(
        self,
        run: Run,
        key: RunKey,
        intent: EffectIntended,
        asked: _Asked,
        place: int,
        now: datetime,
    ) -> None:
        says = partial(self._check, invariant=6, run=key, at=intent.operation)
        name = asked.put.approval_id
        says(asked.state == "approved", what=f"{name} is used, and is {asked.state}")
        says(now < asked.put.use_by, what=f"{name} is used, and its time to begin is over")
        covers = _covers(asked.shown)
        fits = place < len(covers) and _fits(covers[place], intent)
        says(fits, what=f"{name} is used, and is for another hash")
        former = asked.spent.setdefault(place, intent.operation)
        says(former == intent.operation, what=f"{name} is used, and was spent to {former}")
        terms = asked.put.terms
        enough = len(asked.voters) >= (1 if terms is None else terms.quorum)
        says(enough, what=f"{name} is used, and too few have said yes")
        people = [one for pair in asked.voters for one in pair if one]
        says(len(people) == len({*people}), what=f"{name} is used, and somebody said yes twice")
        kept_out = self._kept_out(run, asked)
        says(not kept_out & {*people}, what=f"{name} is used, and {kept_out} may not say yes")
        for voter in asked.voters:
            self._check_holds(run, key, asked, voter[0], now)
        if asked.sticky:
            self.sticky.begins(_place(run, key), intent.operation, asked.sticky, asked.shown, now)

    def _attempted(self, run: Run, key: RunKey, intent: EffectIntended, now: datetime) -> None:
        """Another attempt of an effect is about to begin: who may say no has not said so."""
        self._check_free(key, intent, json.loads(bytes(intent.effective)))
        if intent.compensates:
            return
        self._check_may(run, key, intent, now)
        named = [*intent.asked, *([] if intent.grant is None else [intent.grant.approval_id])]
        for asked in (self._requests[key].get(one) for one in named):
            for by, _ in asked.voters if asked is not None else ():
                self._check_holds(run, key, asked, by, now)

    def _check_free(self, key: RunKey, intent: EffectIntended, arguments: dict[str, Any]) -> None:
        says = partial(self._check, invariant=6, run=key, at=intent.operation)
        for tenant in ("", key.tenant):
            stop = next((one for one in self._orders(tenant) if _stops(one, intent.name)), None)
            says(stop is None, what=f"{intent.name} begins, and is stopped: {stop}")
        denied = self.denies(intent.name, arguments)
        says(not denied, what=f"{intent.name} begins, and is denied: {arguments}")

    # People

    def _kept_out(self, run: Run, asked: _Asked) -> set[str]:
        """Return who may not say yes to a request."""
        barred, terms = {*asked.shown.get("barred", ())}, asked.put.terms
        starters = _starters(run) if terms is not None and terms.four_eyes else set[str]()
        return barred | starters

    def _check_may(self, run: Run, key: RunKey, intent: EffectIntended, now: datetime) -> None:
        if not self.by_roles:
            return
        row, who = self._rows.get((key.tenant, "roles")), _started(run).principal
        free = row is None or "outlast:act" not in row.get("guarded", ())
        verbs = ("outlast:act", "outlast:admin")
        right = free or any(
            self._how(key, who, one, _started(run).name, now - self.within) for one in verbs
        )
        self._check(right, 6, f"{who} may not act any more", run=key, at=intent.operation)

    def _check_holds(
        self, run: Run, key: RunKey, asked: _Asked | None, who: str, now: datetime
    ) -> None:
        if not self.by_roles or asked is None:
            return
        role = asked.put.role
        right = bool(self._how(key, who, role, _started(run).name, now - self.within))
        what = f"{who} does not hold the role {role} any more"
        self._check(right, 6, what, run=key, at=asked.put.approval_id)

    def _check_held(
        self, run: Run, key: RunKey, asked: _Asked, who: tuple[str, str], now: datetime
    ) -> None:
        """Somebody who decides holds the role in the way that is said."""
        if not self.by_roles:
            return
        by, behalf = who
        # An end of the role that comes while the decision is on its way changes no row.
        how = self._how(key, by, asked.put.role, _started(run).name, now - self.within)
        what = f"{by} decides as {asked.put.role}, on behalf of {behalf or 'nobody'}; holds it by {how}"
        self._check(behalf in how, 6, what, run=key, at=asked.put.approval_id)

    def _how(self, key: RunKey, who: str, role: str, workflow: str, now: datetime) -> set[str]:
        """Return whose delegates people are in a role, an empty name for a role of their own; nothing where they do not hold it."""
        row = self._rows.get((key.tenant, "roles"))
        if row is None:
            return {""} if who == self.local else set()
        good = [one for one in row.get("bindings", ()) if _counts(one, role, workflow, now)]
        own = {one["subject"] for one in good if not one.get("delegated_by")}
        lent = (one.get("delegated_by", "") for one in good if one["subject"] == who)
        return {one for one in lent if not one or one in own}

    def _orders(self, tenant: str) -> list[dict[str, Any]]:
        return self._rows.get((tenant, "stops"), {}).get("stops", [])


def _counts(binding: dict[str, Any], role: str, workflow: str, now: datetime) -> bool:
    until = binding.get("until")
    over = until is not None and now >= datetime.fromisoformat(until)
    fits = fnmatchcase(workflow, binding.get("resource", "*"))
    return binding["role"] == role and fits and not over


def _stops(order: dict[str, Any], name: str) -> bool:
    """Whether an order stops an effect; of agents nothing is known here."""
    if order["scope"] == "everything":
        return True
    return order["scope"] == "tool" and fnmatchcase(name, order.get("name", "*"))


def _announces(row: OperationPut) -> bool:
    """Whether a row says that another attempt of an effect begins."""
    waits = row.due_at is not None or row.awaits or row.in_doubt
    return row.kind == "effect" and row.begun_at is not None and not waits and not row.progress


def _place(run: Run, key: RunKey) -> Place:
    return Place(key, run.incarnation, _started(run).name)


def _started(run: Run) -> Started:
    first = from_row(run.rows[0].row)
    assert isinstance(first, Started)
    return first


def _starters(run: Run) -> set[str]:
    """Return who has started a run, or has forked what became of it."""
    started = _started(run)
    forked = {one.by for one in (from_row(row.row) for row in run.rows) if isinstance(one, Forked)}
    return {started.principal, *started.requesters, *forked}


def _covers(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a request covers, as it is shown, each with the hash by which it has to be compared."""
    found: list[dict[str, Any]] = []
    for cover, action in zip(shown["covers"], shown["subject"]["covers"], strict=True):
        if action["kind"] == "call":
            call = {
                "effect": action["effect"],
                "version": action.get("version", ""),
                "arguments": action["arguments"],
            }
            match = _sha256(call)
        else:
            fields = [cover["effect"], sorted(cover["where"].items())]
            plain = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
            match = hashlib.sha256(plain.encode()).hexdigest()
        found.append({**action, "match": match})
    return found


def _fits(cover: dict[str, Any], intent: EffectIntended) -> bool:
    """Whether exactly what an intent would run is covered."""
    if cover["effect"] != intent.name:
        return False
    arguments = _plain(json.loads(bytes(intent.effective)))
    wanted = _plain(cover["arguments"])
    if cover["kind"] == "call":
        like = of_objects(arguments, wanted)
        # What cannot be told without the types of the code has the hash that was shown, at least.
        is_hash = intent.action_sha256 == cover["action_sha256"]
        return like == "same" or (like == "unknown" and is_hash)
    return all(arguments.get(name) == value for name, value in wanted.items())


def _meets(asked: _Asked, want: Want) -> bool:
    """Whether a yes to a request is the one that an effect needs."""
    terms = asked.put.terms
    if terms is None or asked.shown.get("source") == "purpose":
        return False
    strict = terms.quorum >= want.quorum and terms.four_eyes >= want.four_eyes
    return terms.role == want.role and strict


def _read(body: bytes) -> dict[str, Any]:
    """Return a control row; nothing where somebody has written what nobody can read."""
    try:
        found: Any = json.loads(body)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _sha256(value: Any) -> str:
    """Return the hash of a value, as canonical JSON."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return JSON data in which a whole number is written in one way."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[Any]", value)]
    return value
