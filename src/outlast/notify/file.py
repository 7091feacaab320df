"""How people are reached as a TOML file, for `--notify` of `outlast worker`. Its keys are the parameters of `Notify`."""

from __future__ import annotations

import tomllib

import msgspec
from msgspec import Struct

from outlast.approvals.text import safe
from outlast.errors import DefinitionError
from outlast.notify.setting import Notify, Show

_SHOWN = 500


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    channels: dict[str, list[str]]
    link_base: str = ""
    key: str | list[str] = ""
    show: Show = "summary"
    tenant: str = ""


def read_notify(text: str) -> Notify:
    """Return the setting that a TOML file holds.

    Raises:
        DefinitionError: It is no TOML, has another shape, or says what no `Notify` takes.
    """
    try:
        given = msgspec.convert(tomllib.loads(text), _File)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DefinitionError(
            f"the file does not say how people are reached: {safe(str(error)[:_SHOWN])}",
            hint='write [channels] with a list of URLs for each role, as "*" = ["mailto://…"]; link_base, key, show and tenant stand above it',
        ) from None
    return Notify(given.channels, given.link_base, given.key, given.show, given.tenant)
