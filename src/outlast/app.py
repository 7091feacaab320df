"""Composition: a URL becomes a store, the system becomes clock, randomness and threads, and all of it an app.

The only module that names a concrete store. Stores and the worker are loaded where they are begun, not with `import outlast`: a process
that only asks needs no worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import logging
import os
import re
import socket
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from outlast.client import Birth, Client
from outlast.effects.key import check_name
from outlast.errors import DefinitionError, StoreError, StoreUnavailableError
from outlast.journal.entry import Taken
from outlast.meter.meters import Beside, Meters
from outlast.meter.tally import Tally
from outlast.notify.notifier import Notifier
from outlast.notify.setting import Notify
from outlast.policy import Policy, PolicyFile
from outlast.policy.authority import Authority, Principal, StoreAuthority
from outlast.policy.local import local_user
from outlast.store.copied import Copied
from outlast.store.finding import Finding
from outlast.store.migrate import PHASES, Migration
from outlast.store.protocol import Store
from outlast.system import SystemClock, SystemRandom, SystemThreads
from outlast.worker.growth import DEFAULT_LIMITS, HistoryLimits
from outlast.worker.lease import LEASE, LEAST_LEASE, MOST_LEASE
from outlast.worker.options import GRACE, RECHECK_WITHIN, TASKS, WorkerOptions
from outlast.worker.parked import OnParked
from outlast.workflows.definition import Workflow
from outlast.workflows.registry import Registry, library_version

if TYPE_CHECKING:
    from outlast.store.postgres.setting import PostgresSetting
    from outlast.worker.report import Reporter
    from outlast.worker.worker import Worker

T = TypeVar("T")

logger = logging.getLogger("outlast")

DATABASE_URL_VARIABLE = "OUTLAST_DATABASE_URL"
DEFAULT_URL = "sqlite:///outlast.db"
_SECRETS = frozenset({"password", "sslpassword"})
"""Options of libpq that no command shows."""


def local_principal() -> str:
    """Return the local user as a principal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def store_url(url: str | None = None) -> str:
    """Return `url`, or what stands for it: `OUTLAST_DATABASE_URL`, then `sqlite:///outlast.db`."""
    return url or os.environ.get(DATABASE_URL_VARIABLE) or DEFAULT_URL


def sqlite_file(url: str) -> str:
    """Return the file that a `sqlite:` URL names, or an empty string for another kind of store."""
    parts = _parts(url)
    return unquote(parts.path[1:]) if parts.scheme == "sqlite" and not parts.netloc else ""


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # its text may hold the password
        raise StoreUnavailableError(
            "the store's URL is no URL",
            hint="use sqlite:///file.db (relative), sqlite:////var/lib/file.db (absolute), postgresql://user@host/database or memory://",
        ) from None


async def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """Open the store that `url` names.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user@host:5432/database`; by default `OUTLAST_DATABASE_URL`, then
            `sqlite:///outlast.db`.
        create: Make the store when there is none.

    Raises:
        StoreUnavailableError: It cannot be opened, or there is no such kind of store.
    """
    url = store_url(url)
    if file := sqlite_file(url):
        if "\0" in file:
            raise StoreUnavailableError(
                f"{file[:200]!r} is no name of a file", hint="name another file"
            )
        from outlast.store.sqlite.store import open_sqlite

        try:
            file.encode()
            return await open_sqlite(file, clock=SystemClock(), create=create)
        except (OSError, UnicodeEncodeError) as error:
            raise StoreUnavailableError(
                f"{file[:200]!r} cannot be opened: {getattr(error, 'strerror', None) or 'it is no name of a file'}",
                hint="name another file",
            ) from error
    scheme = _parts(url).scheme
    if scheme == "memory":
        from outlast.store.memory import MemoryStore

        if not create:
            raise StoreUnavailableError(
                "memory:// lives and ends with the process that opened it; another one cannot see it",
                hint="name a file: sqlite:///file.db",
            )
        return MemoryStore(SystemClock())
    if is_postgres(url):
        return await _open_postgres(url, create=create)
    raise StoreUnavailableError(
        f"{without_password(url) if '://' in url else url!r} does not name a store",
        hint="use sqlite:///file.db (relative), sqlite:////var/lib/file.db (absolute), postgresql://user@host/database or memory://",
    )


def is_postgres(url: str) -> bool:
    """Whether a URL names a PostgreSQL server."""
    return _parts(url).scheme in {"postgres", "postgresql"}


async def _open_postgres(url: str, *, create: bool) -> Store:
    setting = _postgres_setting(url)
    from outlast.store.postgres.store import open_postgres

    return await open_postgres(setting, clock=SystemClock(), create=create)


def _postgres_setting(url: str) -> PostgresSetting:
    try:
        from outlast.store.postgres.setting import read_setting
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise StoreUnavailableError(
            "PostgreSQL needs psycopg, which is not installed",
            hint="pip install 'outlast[postgres]'",
        ) from error
    return read_setting(url)


def migrate_store(
    url: str | None = None,
    *,
    phases: Iterable[str] = PHASES,
    check: bool = False,
    partitions: int = 0,
) -> list[Migration]:
    """Apply what migrations the store lacks, and return them; a store that is not there is made.

    Args:
        phases: `pre` before new code is deployed, `post` after the last old process has ended.
        check: Only return them.
        partitions: Into how many parts each table of runs is divided, where a store in PostgreSQL is new.

    Raises:
        StoreError: They cannot be applied.
    """
    url = store_url(url)
    if is_postgres(url):
        setting = _postgres_setting(url)
        from outlast.store.postgres.upgrade import upgrade

        return upgrade(setting, phases=tuple(phases), check=check, partitions=partitions)
    file = sqlite_file(url)
    if not file or partitions:
        raise StoreUnavailableError(
            "only a store in PostgreSQL has partitions"
            if file
            else f"{without_password(url)} has no tables to migrate",
            hint="leave out --partitions"
            if file
            else "name a store that is kept: sqlite:///file.db or postgresql://user@host/database",
        )
    from outlast.store.sqlite.upgrade import upgrade_file

    return upgrade_file(file, phases=tuple(phases), check=check)


def rights_of(
    url: str | None, role: str, *, read_only: bool = False, give: bool = False
) -> list[str]:
    """Return the statements that give a role of PostgreSQL what it needs to work on the store.

    Args:
        read_only: It may look at everything, and write nothing.
        give: Run them, too.

    Raises:
        StoreError: It is no store in PostgreSQL, or they cannot be run.
    """
    url = store_url(url)
    if not is_postgres(url):
        raise StoreUnavailableError(
            f"{store_place(url)} knows no roles of a database",
            hint="who may read and write a file, its mode says; rights are granted in PostgreSQL",
        )
    setting = _postgres_setting(url)
    from outlast.store.postgres.role import grants
    from outlast.store.postgres.upgrade import give_rights

    if give:
        return give_rights(setting, role, read_only=read_only)
    return list(grants(setting.schema, role, read_only=read_only))


def _announce(text: str) -> None:
    """Say where the work is kept, to a log that listens or to standard error: two stores by accident are hard to see."""
    if logger.isEnabledFor(logging.INFO):
        logger.info(text)
    else:
        print(text, file=sys.stderr)


_told: set[str] = set()
"""The stores of which this process has said that they have no roles."""


async def _say_when_open(authority: Authority, tenant: str, place: str) -> None:
    """Say once of a store that nobody has set roles in it, and what that means; nothing where that cannot be read."""
    if place in _told or not isinstance(authority, StoreAuthority):
        return
    try:
        is_open = (await authority.roles(tenant)).is_open
    except StoreError as error:
        logger.debug("whether roles are set cannot be read: %s", error)
        return
    _told.add(place)
    if is_open:
        user = local_principal()
        others = "" if authority.local == user else f", and {user} none"
        _announce(
            f"no roles are set in this store: {authority.local} holds all of them{others} (`outlast roles grant SUBJECT ROLE` sets them up)"
        )


async def _authority_of(store: Store, given: Authority | None) -> Authority:
    """Return who says who may do what: a directory that was given, an empty one too, or the roles in the store."""
    if given is not None:
        return given
    return StoreAuthority(store, await local_user(store, local_principal()))


def store_place(url: str | None = None) -> str:
    """Return the absolute file that `url` names, or where another kind of store is, without a password."""
    url = store_url(url)
    file = sqlite_file(url)
    if file:
        return str(Path(file).resolve())
    if is_postgres(url):
        with contextlib.suppress(StoreUnavailableError):
            return _postgres_setting(url).place
    return without_password(url)


def typed_url(url: str) -> str:
    """Return a URL as it can be typed in a command that is shown: as it is, but for passwords, which libpq finds elsewhere (`~/.pgpass`)."""
    if not is_postgres(url):
        return url
    parts = _parts(url)
    place = parts.netloc.rpartition("@")
    if url.count("@") > 1 or ("@" in url and not place[1]):
        # Some of it may be a password that was not encoded.
        return without_password(url)
    user = place[0].partition(":")[0]
    options = [
        (name, typed_url(value) if name == "listen" else value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name not in _SECRETS
    ]
    query = urlencode(options, safe="/")
    return urlunsplit(parts._replace(netloc=f"{user}{place[1]}{place[2]}", query=query))


def without_password(url: str) -> str:
    """Return a URL fit to be printed: without user, password and options. What is not clear is left out."""
    scheme, _, rest = url.partition("://")
    place = re.split(r"[?#]", rest.rpartition("@")[2])[0]
    # A second @ may stand in a password or in an option: nobody can say which of the parts is none of it.
    return f"{scheme}://{place if rest.count('@') <= 1 and not _is_late(rest) else '…'}"


def _is_late(rest: str) -> bool:
    """Whether the only @ of what follows the scheme stands behind a slash or a question mark."""
    before, at, _ = rest.partition("@")
    return bool(at) and bool(re.search(r"[/?#]", before))


def examine_store(url: str | None = None) -> list[Finding]:
    """Return what is found about the store that `url` names, without changing it; nothing where there is none."""
    url = store_url(url)
    if is_postgres(url):
        try:
            setting = _postgres_setting(url)
        except StoreUnavailableError:  # whoever opened the store has told it
            return []
        from outlast.store.postgres.checkup import examine as examine_postgres

        return examine_postgres(setting, SystemClock())
    place = Path(store_place(url))
    if not sqlite_file(store_url(url)) or not place.is_file():
        return []
    from outlast.store.sqlite.checkup import examine

    return examine(str(place), SystemClock())


def back_up_store(file: str | os.PathLike[str], url: str | None = None) -> Copied:
    """Copy a store into a new file, as it is at one moment, while its workers go on.

    Args:
        file: Which must not exist.
        url: Of the store, as for `open_store`.

    Raises:
        StoreUnavailableError: It is not kept in a file, or one of them cannot be read or written.
    """
    from outlast.store.sqlite.backup import back_up

    return back_up(_file_of(url, "PostgreSQL has its own"), os.fspath(file), SystemClock())


def restore_store(
    file: str | os.PathLike[str], url: str | None = None, *, replace: bool = False
) -> Copied:
    """Put a backup into the place of a store: a new line of history begins, and workers move only what is released.

    Args:
        file: The backup. It stays as it is.
        url: Of the store, as for `open_store`.
        replace: Keep a database that stands there under another name. Nobody may have it open.

    Raises:
        StoreUnavailableError: There is no such backup; or a database stands there, and is in use, or not to be replaced.
    """
    from outlast.store.sqlite.backup import put_back

    place = _file_of(url, "restore it by its own means, and say so by `outlast restore --here`")
    return put_back(os.fspath(file), place, SystemClock(), replace=replace)


def _file_of(url: str | None, otherwise: str) -> str:
    file = sqlite_file(store_url(url))
    if not file:
        raise StoreUnavailableError(
            "only a store that is a file has its backup made here", hint=otherwise
        )
    return file


_OPENED = frozenset(
    {
        "_home",
        "store",
        "tenant",
        "principal",
        "actor",
        "authority",
        "registry",
        "replicas",
        "worker",
        "_random",
        "_birth",
        "_births",
    }
)
"""What a client has from when it is entered."""


class _Entered(Client):
    """A client that is used within `async with`."""

    if not TYPE_CHECKING:  # a checker would take every name for one that it has

        def __getattr__(self, name: str) -> Any:
            """Say what is missing when it was not entered."""
            if name in _OPENED:
                made_by = "open" if isinstance(self, App) else "connect"
                raise DefinitionError(
                    f"what outlast.{made_by}() returned is used before it was opened",
                    hint=f"open it: `async with outlast.{made_by}(…) as {'app' if made_by == 'open' else 'client'}:`",
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Connection(_Entered):
    """A client that opens its store when it is entered.

    Args:
        create: Make the store when there is none.
    """

    def __init__(
        self,
        url: str | None,
        *,
        tenant: str,
        principal: str | Principal | None,
        authority: Authority | None = None,
        create: bool = True,
    ) -> None:
        self._url = url
        self._create = create
        self._given_tenant = tenant
        self._given_principal = local_principal() if principal is None else principal
        self._given_authority = authority

    async def __aenter__(self) -> Connection:
        """Open the store."""
        store = await open_store(self._url, create=self._create)
        try:
            authority = await _authority_of(store, self._given_authority)
        except BaseException:
            await store.close()
            raise
        super().__init__(
            store,
            random=SystemRandom(),
            tenant=self._given_tenant,
            principal=self._given_principal,
            authority=authority,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the store."""
        try:
            await self.replicas.close()
        finally:
            await self.store.close()


class App(_Entered):
    """Client and worker in one process, on one store.

    Args:
        options: The worker's.
        notify: How people are told of what they are asked; nobody is told by default.
        meters: Told what is counted and measured, beside the app's own tally.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def greet(name: str) -> str:
            return f"hello {name}"

        async with outlast.open("memory://") as app:  # an App: a client whose worker runs beside it
            assert await app.run(greet("Ada"), id="greet-ada") == "hello Ada"
            assert [run.run_id for run in await app.runs.list()] == ["greet-ada"]
        ```
    """

    def __init__(  # noqa: PLR0913 - what `open` was told
        self,
        url: str | None,
        *,
        workflows: Iterable[Workflow[..., Any] | ModuleType] | None,
        tenant: str,
        principal: str | Principal | None,
        options: WorkerOptions,
        authority: Authority | None = None,
        notify: Notify | None = None,
        meters: Meters | None = None,
    ) -> None:
        self._url = url
        self._workflows = workflows
        self._given_tenant = tenant
        self._given_principal = local_principal() if principal is None else principal
        self._given_authority = authority
        self._options = options
        self._notify = notify
        self._notifier: Notifier | None = None
        self._tally = Tally()
        self._meters = self._tally if meters is None else Beside(self._tally, meters)
        self._is_observed = meters is not None
        self._reporter: Reporter | None = None
        self.worker: Worker

    async def __aenter__(self) -> App:
        """Open the store, register the code, start the worker."""
        registry = Registry.of_everything(self._workflows)
        store = await open_store(self._url)
        try:
            await self._start_worker(store, registry)
        except BaseException:
            await store.close()
            raise
        try:
            self._begin_reports(store)
            if self._notify is not None:
                self._notifier = Notifier(
                    store, self._notify, self.tenant, held=lambda: self.worker.paused
                )
                self._notifier.start()
            _warn_of_idle_queues(registry, self._options.queues)
            _announce(f"outlast {library_version()} on {store.describe()}")
            await _say_when_open(self.authority, self.tenant, store.describe())
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Give every run back, then close the store."""
        try:
            try:
                if self._reporter is not None:
                    await self._reporter.stop()
                if self._notifier is not None:
                    await self._notifier.stop()
            finally:
                await self.worker.stop()
        finally:
            self.worker.leave()
            try:
                await self.replicas.close()
            finally:
                await self.store.close()

    async def _start_worker(self, store: Store, registry: Registry) -> None:
        """Make worker and client on one store, and start the worker: nothing that can be wrong in what was given comes after it."""
        from outlast.worker.stall import LoopWatch
        from outlast.worker.worker import Worker

        threads = SystemThreads()
        authority = await _authority_of(store, self._given_authority)
        self.worker = Worker(
            store,
            registry,
            clock=SystemClock(),
            random=SystemRandom(),
            threads=threads,
            options=dataclasses.replace(self._options, authority=authority, meters=self._meters),
            closed=self.closed,
            watch=LoopWatch(threads),
        )
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        birth = Birth(
            submit=self._submit,
            owner=self.worker.born_here,
            adopt=self.worker.adopt,
            taken=Taken(python=python, library=library_version()),
            holds=self.worker.holds,
        )
        super().__init__(
            store,
            random=SystemRandom(),
            tenant=self._given_tenant,
            principal=self._given_principal,
            authority=authority,
            birth=birth,
            registry=registry,
        )
        await self.worker.start()

    def _begin_reports(self, store: Store) -> None:
        from outlast.worker.report import Reporter

        observer = self._meters if self._is_observed else None
        self._reporter = Reporter(store, self.worker, self._tally, observer)
        self._reporter.start()

    async def _submit(self, change: Any) -> Any:
        verdict = await self.worker.submit(change)
        self.worker.look()
        return verdict


def open(  # noqa: A001, PLR0913 - the public name, used as outlast.open, and what an app can be told
    url: str | None = None,
    *,
    workflows: Iterable[Workflow[..., Any] | ModuleType] | None = None,
    tenant: str = "default",
    principal: str | Principal | None = None,
    authority: Authority | None = None,
    lease: timedelta = LEASE,
    idle: timedelta = timedelta(seconds=1),
    grace: timedelta = GRACE,
    history: HistoryLimits = DEFAULT_LIMITS,
    queues: Iterable[str] = (),
    tasks: int = TASKS,
    policy: Policy | PolicyFile | str | Path | None = None,
    recheck_within: timedelta = RECHECK_WITHIN,
    notify: Notify | None = None,
    paused: bool = False,
    on_parked: OnParked | None = None,
    meters: Meters | None = None,
) -> App:
    """Return client and worker in one; use it as `async with outlast.open(url) as app`.

    Args:
        url: Of the store: `sqlite:///agent.db`. By default `OUTLAST_DATABASE_URL`, then `sqlite:///outlast.db`.
        workflows: Narrows what the worker runs; everything decorated in the modules imported so far by default.
        tenant: Whose runs the client sees.
        principal: Who acts: a name or a `Principal`; the local user by default.
        authority: Says who may do what, as a directory of yours; by default the roles in the store. While none are set, the local user
            who opened the store first holds all of them.
        lease: How long the worker may be silent before others take its runs: from 1 second to 30 days.
        idle: How long a run that only waits stays in memory.
        grace: How long steps and effects may go on when the app is left. What has not ended by then is cancelled, and attempted again elsewhere; a synchronous
            effect is waited for.
        history: How long journals may become before a run is told to continue as new, and before it is blocked.
        queues: Whose remote steps the worker runs, as `["gpu"]`: those declared with `@step(queue="gpu")`, of any run on this store.
        tasks: How many of those it runs at once.
        policy: What effects may do, asked each time one is about to begin; a TOML file is looked at again each second, and one that cannot be
            used changes nothing.
        recheck_within: How old what was found out about an effect may be when it begins: policy, roles, and facts that a yes rests on.
        notify: How people are told of what they are asked: `Notify(channels={"maintainer": ["mailto://…"]})`. Nobody is told by default.
        paused: The worker moves nothing but what is released (`Client.release`, `outlast release`), until everything is. So it is, too, when the
            store was restored from a backup.
        on_parked: Called with a `Parked` when the worker leaves a run `blocked`: once for each reason, also after a restart. It may be
            async; a plain function is called in a thread.
        meters: Told what the worker counts and measures, and what the whole store holds: `OpenTelemetryMeters()` of
            `outlast.integrations.opentelemetry`, or what has the three methods of `outlast.meter.Meters`.

    Raises:
        PolicyError: The policy's file cannot be used.
        DefinitionError: A time is not a `timedelta` longer than nothing, or the lease too short or too long; or a queue is no name. When it is entered: two of what was
            declared have one name, or `workflows` holds something else than workflows and modules.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def greet(name: str) -> str:
            return f"hello {name}"

        async with outlast.open("sqlite:///agent.db") as app:
            assert await app.run(greet("Ada"), id="greet-ada") == "hello Ada"
        ```
    """
    spans = {"lease": lease, "idle": idle, "grace": grace, "recheck_within": recheck_within}
    for name, span in spans.items():
        given: Any = span
        if not isinstance(given, timedelta) or given <= timedelta(0):
            raise DefinitionError(
                f"{name}={given!r} is not a time that can pass",
                hint=f"write {name}=timedelta(seconds=…)",
            )
    if not LEAST_LEASE <= lease <= MOST_LEASE:
        raise DefinitionError(
            f"a lease of {lease.total_seconds():g} seconds is too {'short' if lease < LEAST_LEASE else 'long'}: it is from "
            f"{LEAST_LEASE.total_seconds():g} second to {MOST_LEASE.days} days long",
            hint="a worker renews it three times within it, and others wait for its end when the worker has died: write "
            "lease=timedelta(seconds=15), or --lease 15s",
        )
    options = WorkerOptions(
        lease=lease,
        idle=idle,
        grace=grace,
        host=socket.gethostname(),
        pid=os.getpid(),
        library=library_version(),
        history=history,
        queues=_queue_names(queues),
        tasks=_task_count(tasks),
        policy=_policy_of(policy),
        recheck_within=recheck_within,
        paused=paused,
        parked=on_parked,
    )
    return App(
        url,
        workflows=workflows,
        tenant=tenant,
        principal=principal,
        options=options,
        authority=authority,
        notify=notify,
        meters=meters,
    )


def _policy_of(policy: Any) -> Policy | PolicyFile | None:
    """Return what is to be asked, or refuse what is no policy; a file is read now."""
    if isinstance(policy, str | Path):
        policy = PolicyFile(policy)
    if isinstance(policy, PolicyFile):
        _ = policy.policy
    if policy is None or isinstance(policy, Policy | PolicyFile):
        return policy
    raise DefinitionError(
        f"policy={policy!r:.80} is no policy",
        hint='give a Policy, or the path of a TOML file, as policy="policy.toml"',
    )


def _warn_of_idle_queues(registry: Registry, queues: Iterable[str]) -> None:
    """Say of which queues this worker cannot run anything: a name may be mistyped."""
    for queue in sorted(set(queues) - registry.queues()):
        known = ", ".join(map(repr, sorted(registry.queues()))) or "none"
        logger.warning(
            "this worker serves the queue %r, and no step that it knows is declared with it (declared: %s)",
            queue,
            known,
        )


def _queue_names(queues: Iterable[str]) -> tuple[str, ...]:
    if isinstance(queues, str):
        raise DefinitionError(
            f"queues={queues!r} is one text and not several names",
            hint=f"write queues=[{queues!r}]",
        )
    return tuple(dict.fromkeys(check_name(one, what="queue") for one in queues))


def _task_count(tasks: int) -> int:
    given: Any = tasks
    if not isinstance(given, int) or given < 1:
        raise DefinitionError(
            f"tasks={given!r} is no number of steps that can run at once",
            hint="give 1 or more; a worker without queues runs none",
        )
    return given


def connect(
    url: str | None = None,
    *,
    tenant: str = "default",
    principal: str | Principal | None = None,
    authority: Authority | None = None,
    create: bool = False,
) -> Connection:
    """Return a client without a worker; use it as `async with outlast.connect(url) as client`.

    Args:
        url: Of the store, as for `open`.
        tenant: Whose runs it sees.
        principal: Who acts: a name or a `Principal`; the local user by default.
        authority: Says who may do what, as for `open`.
        create: Make the store when there is none; a mistyped path is an error otherwise.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def greet(name: str) -> str:
            return f"hello {name}"

        async with outlast.open("sqlite:///agent.db") as app:
            await app.start(greet("Ada"), id="greet-ada")
            async with outlast.connect("sqlite:///agent.db") as client:  # as from another process
                assert await client.handle("greet-ada", greet).result() == "hello Ada"
        ```
    """
    return Connection(url, tenant=tenant, principal=principal, authority=authority, create=create)
