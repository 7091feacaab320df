"""Laws of keys: no two purposes share one."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from outlast.effects.key import check_name, check_run_id, check_tenant, idempotency_key, namespace
from outlast.effects.retry import RetryPolicy
from outlast.errors import DefinitionError


def accepted(check, text: str) -> bool:
    """Whether a check lets the text through."""
    with suppress(DefinitionError):
        return check(text) == text
    return False


tricky = st.text(st.sampled_from("ab:~#/12\x1fé \t") | st.characters(), min_size=1, max_size=8)
run_ids = tricky.filter(lambda text: accepted(check_run_id, text))
tenants = st.just("default") | tricky.filter(lambda text: accepted(check_tenant, text))
letters = st.text("a:2\x1f~", min_size=1, max_size=3)
short = st.tuples(
    letters.filter(lambda text: accepted(check_tenant, text)) | st.just("default"),
    letters.filter(lambda text: accepted(check_run_id, text)),
    st.integers(1, 2),
)
names = tricky.filter(lambda text: accepted(lambda name: check_name(name, what="effect"), text))
uses = st.tuples(tenants, run_ids, st.integers(1, 30))
payloads = st.sampled_from(["00", "0f" * 32, "1" * 64])
calls = st.tuples(uses, names, payloads, st.integers(1, 30))


@given(uses, uses)
def test_namespaces_are_injective(one, other):
    """Two uses of ids share a namespace only when tenant, run and generation are the same."""
    assert (namespace(*one) == namespace(*other)) == (one == other)


@given(short, short)
def test_namespaces_are_injective_over_the_separators(one, other):
    """Short ids out of the separators themselves do not collide either."""
    assert (namespace(*one) == namespace(*other)) == (one == other)


@given(calls, calls)
def test_keys_are_injective(one, other):
    """Two calls share a key only when run, effect, payload and number are the same."""

    def key(call):
        use, name, payload, number = call
        return idempotency_key(namespace(*use), name, payload, number=number)

    assert (key(one) == key(other)) == (one == other)


@given(
    st.timedeltas(timedelta(microseconds=1), timedelta(days=9999)),
    st.floats(1, 1e9),
    st.integers(1, 10**6),
)
def test_waits_never_shrink_and_are_never_longer_than_the_longest(initial, coefficient, failures):
    """Whatever the policy, a later wait is no shorter, and none exceeds the cap."""
    policy = RetryPolicy(initial, coefficient)
    assert initial <= policy.gap(failures) <= policy.gap(failures + 1) <= initial * 100
