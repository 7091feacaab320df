"""What is wrong in how people are reached is said before anybody has to be; links hold what they say, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from itsdangerous import URLSafeSerializer

from outlast.errors import DefinitionError
from outlast.notify import Notify
from outlast.notify.channel import AppriseChannel
from outlast.notify.file import read_notify
from outlast.notify.link import Links

from .notify_bench import Post

KEY = "k" * 32
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"channels": {}}, "nobody to reach"),
        ({"channels": None}, "nobody to reach"),
        ({"channels": {"": [Post()]}}, "is no role"),
        ({"channels": {"a": "json://x"}}, "are no list"),
        ({"channels": {"a": []}}, "an empty one"),
        ({"channels": {"a": [7]}}, "int"),
        ({"channels": {"a": [Post(), Post()]}}, "one name"),
        ({"channels": {"a": ["no-url"]}}, "no URL of apprise"),
        ({"channels": {"a": ["nosuchservice://hunter2@x"]}}, "does not know"),
        ({"show": "some"}, "no amount"),
        ({"tenant": "a\nb"}, "cannot be a tenant"),
        ({"tenant": None}, "cannot be a tenant"),
        ({"link_base": "https://x.example"}, "a link_base and a key"),
        ({"key": KEY}, "a link_base and a key"),
        ({"link_base": "https://x.example", "key": "short"}, "32 characters"),
        ({"link_base": "https://x.example", "key": [KEY, "short"]}, "32 characters"),
        ({"link_base": "ftp://x.example", "key": KEY}, "no place"),
        ({"link_base": "https://x.example?a=1", "key": KEY}, "no place"),
        ({"link_base": "https://[x", "key": KEY}, "no place"),
        ({"link_base": "https://x.example/a b", "key": KEY}, "no place"),
    ],
)
def test_what_is_wrong_is_said(given, part) -> None:
    """With what to write, and without a secret of a URL."""
    with pytest.raises(DefinitionError, match=part) as raised:
        Notify(**{"channels": {"*": [Post()]}, **given})
    assert raised.value.hint
    assert "hunter2" not in f"{raised.value}{raised.value.hint}"


def test_nothing_secret_is_printed() -> None:
    """Neither keys nor URLs are in the text of a setting, nor the URL in the name of its channel."""
    setting = Notify({"*": ["json://u:hunter2@localhost/x"]}, "https://x.example", KEY)
    assert "hunter2" not in repr(setting) and KEY not in repr(setting)
    (channel,) = setting.channels_of("anybody")
    assert channel.name.startswith("json-") and "localhost" not in channel.name
    assert AppriseChannel("json://u:hunter2@localhost/x").name == channel.name


def test_a_file_says_the_same() -> None:
    """Its keys are the parameters."""
    setting = read_notify(
        f'link_base = "https://x.example/a"\nkey = ["{KEY}"]\nshow = "full"\ntenant = "acme"\n[channels]\nboss = ["json://localhost"]\n'
    )
    assert setting.tenant == "acme"
    assert (setting.show, len(setting.channels_of("boss")), setting.channels_of("x")) == (
        "full",
        1,
        (),
    )
    assert setting.links is not None


@pytest.mark.parametrize(
    "text",
    [
        "channels",
        "[channels]\n",
        "x = 1\n[channels]\na=['json://x']",
        "[channels]\na='json://x'",
        "show=1\n[channels]",
    ],
)
def test_a_file_that_is_none_is_refused(text) -> None:
    """What is unknown, missing or of another shape is an error, and nothing that is skipped."""
    with pytest.raises(DefinitionError):
        read_notify(text)


def test_a_link_is_read_as_it_was_made() -> None:
    """Until its end; an older key is believed as long as it is named, and the newest one signs."""
    links = Links(KEY)
    token = links.token("t", "run/1", "1~r:1#2", NOW + timedelta(hours=1))
    shown = links.read(token, NOW)
    assert shown is not None
    assert (shown.tenant, shown.run_id, shown.approval_id) == ("t", "run/1", "1~r:1#2")
    assert "/" not in token
    assert links.read(token, NOW + timedelta(hours=1)) is None
    new = Links([KEY, "n" * 32])
    assert new.read(token, NOW) == shown
    assert links.read(new.token("t", "r", "a", NOW + timedelta(hours=1)), NOW) is None


def test_a_link_of_somebody_else_is_none() -> None:
    """Another key, another salt, another purpose, another shape, something done to it, or something endless."""
    links = Links(KEY)
    good = {"purpose": "show", "tenant": "t", "run_id": "r", "approval_id": "a", "until": 1 << 40}
    made = {"key_derivation": "hmac", "digest_method": __import__("hashlib").sha256}

    def signed(value, salt="outlast.approval", key=KEY):
        return URLSafeSerializer(key, salt=salt, signer_kwargs=made).dumps(value)

    assert links.read(signed(good), NOW) is not None
    for bad in (
        signed(good, salt="other"),
        signed(good, key="o" * 32),
        signed(good | {"purpose": "decide"}),
        signed({**good, "until": True}),
        signed({"purpose": "show"}),
        signed(["show"]),
        "",
        "x",
        "é",
        "\udc80",
        "." * 10_000,
        signed(good)[:-1],
        "a" + signed(good),
    ):
        assert links.read(bad, NOW) is None, bad
