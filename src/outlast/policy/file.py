"""A policy in a file that may change while it is used. A file that cannot be used changes nothing: the last policy that could stays."""

from __future__ import annotations

import hashlib
from pathlib import Path

from outlast.errors import PolicyError
from outlast.policy.opinion import Callback, Hook
from outlast.policy.policy import Policy
from outlast.policy.toml import LARGEST_FILE_BYTES, policy_of

_Stamp = tuple[int, int, int, int]


class PolicyFile:
    """A policy in a TOML file, with hooks and a callback from the program.

    Args:
        path: Of the file.
        hooks: As `Policy` has them; so are the others.

    Example:
        ```python
        from pathlib import Path
        from outlast.policy import PolicyFile

        path = Path("policy.toml")
        path.write_text('mode = "plan"')
        file = PolicyFile(path)
        assert file.load().mode == "plan"
        path.write_text('mode = "dont_ask"')
        assert file.reload_if_changed() and file.policy.mode == "dont_ask"
        ```
    """

    def __init__(
        self,
        path: str | Path,
        *,
        hooks: tuple[Hook, ...] = (),
        callback: Callback | None = None,
        callback_tools: tuple[str, ...] = ("*",),
    ) -> None:
        self.path = Path(path)
        self._hooks = hooks
        self._callback = callback
        self._callback_tools = callback_tools
        self._policy: Policy | None = None
        self._stamp: _Stamp | None = None
        self._sha256 = ""

    @property
    def policy(self) -> Policy:
        """The policy in force; the file is read at the first time.

        Raises:
            PolicyError: It could not be read then.
        """
        return self._policy or self.load()

    def load(self) -> Policy:
        """Read the file, and return its policy, which is in force from now on.

        Raises:
            PolicyError: It cannot be used. What was in force stays in force.
        """
        self._stamp = self._look()
        data = self._read()
        self._sha256 = hashlib.sha256(data).hexdigest()
        self._policy = self._parse(data)
        return self._policy

    def reload_if_changed(self) -> bool:
        """Read the file again if it is another one since, and say whether another policy is in force.

        Cheap while the file stays as it is: its times and size are looked at, and its content where those have changed.

        Raises:
            PolicyError: It has changed and cannot be used; said once of each change, by this call alone. What was in force stays in force.
        """
        if self._policy is None:
            self.load()
            return True
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        before, data = self._policy, self._read()
        digest = hashlib.sha256(data).hexdigest()
        if digest == self._sha256:
            return False
        self._sha256 = digest
        self._policy = self._parse(data)
        return self._policy.version != before.version

    def _look(self) -> _Stamp | None:
        """Return what changes whenever the file is written; None where there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                data = file.read(LARGEST_FILE_BYTES + 1)
        except OSError as error:
            self._sha256 = ""
            raise self._error(
                f"it cannot be read: {error.strerror}", "check path and permissions"
            ) from None
        if len(data) > LARGEST_FILE_BYTES:
            self._sha256 = ""
            raise self._error(
                f"it is larger than {LARGEST_FILE_BYTES} bytes", "a policy is no list of users"
            )
        return data

    def _parse(self, data: bytes) -> Policy:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise self._error("it is not written in UTF-8", "save it as UTF-8") from None
        return policy_of(
            text,
            file=str(self.path),
            hooks=self._hooks,
            callback=self._callback,
            callback_tools=self._callback_tools,
        )

    def _error(self, what: str, hint: str) -> PolicyError:
        return PolicyError(f"{self.path}: {what}", hint=hint, file=str(self.path))
