"""Puts a master together: core, RPC server, admin API, clock, signals. No decisions here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import secrets
import signal
import sys
import time
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Final

from mooncake_master import collection
from mooncake_master.admin import AdminServer, AdminService, create_application
from mooncake_master.admin.models import Configuration, ConfiguredOption
from mooncake_master.core import Master, Remember, Remembered
from mooncake_master.core.reigns import first_numbers
from mooncake_master.core.remembered import Reign
from mooncake_master.exposition import Exposition
from mooncake_master.leadership import Campaign, Observer, Office, Stage
from mooncake_master.listening import advertised, advertising_problem, bound_addresses
from mooncake_master.meters import Meters
from mooncake_master.server import Server, ServerLimits, Shared
from mooncake_master.standing import Keeping, SharedKeeping, open_keeping
from mooncake_master.switchboard import Switchboard
from mooncake_master.watch import Watch
from mooncake_store import limits
from mooncake_store.errors import ConfigError
from mooncake_store.wire.control import Welcome

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from mooncake_master.settings import MasterSettings
    from mooncake_store.wire.address import Address

logger = logging.getLogger(__name__)

SOFTWARE: Final = f"mooncake-store {installed_version('mooncake-store')}"

SWITCH_S: Final = 0.001
"""Time that the thread which writes out metrics keeps the interpreter before the loop's turn."""

FLUSH_S: Final = 1.0
"""What a power failure may cost of what the data directory holds; the end of the process costs
nothing."""

FILES_RESERVED: Final = 64
"""Descriptors kept for everything that is no RPC connection."""


async def serve(
    settings: MasterSettings,
    rpc_sockets: list[socket.socket],
    admin_sockets: list[socket.socket],
    announce: Callable[[str], None],
) -> None:
    """Run a master until SIGTERM or SIGINT, then stop within ``settings.stop_timeout_s``.

    Args:
        settings: How it runs.
        rpc_sockets: Where nodes and clients connect; listening, closed at the end.
        admin_sockets: The same for the admin API.
        announce: Called once, with one line, when it serves or stands by.

    Raises:
        ConfigError: The data directory cannot be used.
    """
    stops = _stop_signals()
    bound = bound_addresses(rpc_sockets)
    public = advertised(settings.advertise, bound)
    problem = advertising_problem(public, bound)
    if problem:
        logger.warning("%s; name a reachable one with --advertise", problem)

    with contextlib.ExitStack() as opened:
        keeping = _open_keeping(settings, opened)
        office = Office(_awake_or_not_s) if settings.ha else None
        shared_keeping = _shared_keeping(settings)
        cluster_id, begin = _identity(settings, keeping)
        switchboard = Switchboard(
            _core(
                settings,
                cluster_id,
                (0, 0) if office else begin,
                None if keeping is None else keeping.remembered,
            ),
            time.monotonic,
            office=office,
            keeper=keeping or shared_keeping,
        )
        shared = Shared(
            switchboard, Meters(), lambda: _welcome(switchboard.core), _bounds(settings), SOFTWARE
        )
        server = Server(shared)
        service = AdminService(switchboard)
        admin = AdminServer(
            create_application(
                service,
                lambda: _configuration(settings, rpc_sockets, admin_sockets, public),
                Exposition(service.look, shared).text,
                SOFTWARE.partition(" ")[2],
            )
        )
        await server.start(rpc_sockets)
        await admin.start(admin_sockets)
        collection.tame()
        sys.setswitchinterval(SWITCH_S)
        announce(
            f"master {'standing by' if office else 'ready'}: rpc={_joined(bound)}"
            f" advertise={public} admin=http://{_joined(bound_addresses(admin_sockets)[:1])}"
            + (f" ha={settings.location()}" if office else f" cluster={cluster_id} term={begin[0]}")
        )
        async with (
            _beside(Watch(service).run(), _flush(keeping)),
            _campaign(settings, shared, service, str(public), shared_keeping),
        ):
            await stops.get()
            logger.info("stopping, %d connections are open", len(shared.connections))
            stopped = asyncio.gather(server.stop(settings.stop_timeout_s), admin.stop())
            await _first(stopped, stops.get())


@contextlib.asynccontextmanager
async def _campaign(
    settings: MasterSettings,
    shared: Shared,
    service: AdminService,
    address: str,
    keeping: SharedKeeping | None,
) -> AsyncIterator[None]:
    """Compete for leadership meanwhile, where there are several masters."""
    office, location = shared.switchboard.office, settings.location()
    if office is None or location is None or keeping is None:
        yield
        return
    from mooncake_master.leadership.etcd import EtcdCoordinator  # noqa: PLC0415 - only if wanted

    observer = Observer(office, time.time)

    def look_back() -> None:
        status, namespaces = service.look()
        observer.note(status.nodes, namespaces)

    campaign = Campaign(
        EtcdCoordinator(location, settings.ha_lease_s),
        office,
        Stage(
            shared,
            office,
            lambda term, cluster, known: _core(settings, cluster, (term, _first_count()), known),
            look_back,
            keeping,
            observer,
        ),
        address=address,
        cluster_id=settings.cluster_id or secrets.token_hex(8),
        lease_s=settings.ha_lease_s,
    )
    try:
        async with _beside(campaign.run(), observer.run(), keeping.run()):
            yield
    finally:
        await keeping.aclose()
        await campaign.resign()


@contextlib.asynccontextmanager
async def _beside(*works: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Do other work meanwhile; a bug in it ends everything, instead of going unnoticed."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None  # One line says more than "unhandled errors".


async def _flush(keeping: Keeping | None) -> None:
    """Make what is kept survive a power failure, too, a moment later."""
    while keeping is not None:
        await asyncio.sleep(FLUSH_S)
        keeping.retry()
        await asyncio.to_thread(keeping.flush)


def _open_keeping(settings: MasterSettings, opened: contextlib.ExitStack) -> Keeping | None:
    if settings.data_dir is not None:
        keeping = open_keeping(settings.data_dir)
        opened.callback(keeping.close)
        return keeping
    if not settings.ha:
        logger.info(
            "no --data-dir: a restart forgets manifests of namespaces, which nodes were there, and"
            " what absent nodes still have to erase; objects are learnt from the nodes again"
        )
    return None


def _shared_keeping(settings: MasterSettings) -> SharedKeeping | None:
    location = settings.location()
    if location is None:
        return None
    from mooncake_master.leadership.archive import EtcdArchive  # noqa: PLC0415 - only if wanted

    return SharedKeeping(EtcdArchive(location, settings.ha_lease_s))


def _identity(settings: MasterSettings, keeping: Keeping | None) -> tuple[str, tuple[int, int]]:
    """Return cluster, term and first count of this master, and note that they are used.

    Raises:
        ConfigError: The data directory is another cluster's.
    """
    reign = None if keeping is None else keeping.remembered.reign
    known = "" if reign is None else reign.cluster_id
    if known and settings.cluster_id and known != settings.cluster_id:
        raise ConfigError(
            f"--data-dir {settings.data_dir} belongs to the cluster {known!r}, not to"
            f" {settings.cluster_id!r}"
        )
    cluster_id = settings.cluster_id or known or ("" if settings.ha else secrets.token_hex(8))
    numbers = first_numbers(time.time(), 0 if reign is None else reign.term)
    if keeping is not None:
        keeping.keep([Remember("reign", "", Reign(cluster_id, numbers[0]))])
    return cluster_id, numbers


def _first_count() -> int:
    """Return the count before the first attempt of a reign that begins now."""
    return first_numbers(time.time())[1]


def _awake_or_not_s() -> float:
    """Return a clock that goes on while the host is suspended, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _stop_signals() -> asyncio.Queue[int]:
    """Return where SIGTERM and SIGINT arrive from now on; a second one ends without waiting."""
    stops: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stops.put_nowait, number)
    return stops


async def _first(*awaitables: Awaitable[object]) -> None:
    """Wait for one of several, and give the others up."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _core(
    settings: MasterSettings,
    cluster_id: str,
    numbers: tuple[int, int],
    remembered: Remembered | None,
) -> Master:
    term, count = numbers
    return Master(
        settings.core_config(),
        term=term,
        count=count,
        cluster_id=cluster_id,
        wall_offset_s=time.time() - time.monotonic(),
        seed=secrets.randbits(64),
        software=SOFTWARE,
        remembered=remembered,
    )


def _welcome(core: Master) -> Welcome:
    return Welcome(
        protocol=limits.PROTOCOL_VERSION,
        software=SOFTWARE,
        term=core.term,
        cluster_id=core.cluster_id,
        lease_ttl_s=core.config.lease_ttl_s,
        put_ttl_s=core.config.put_ttl_s,
    )


def _bounds(settings: MasterSettings) -> ServerLimits:
    """Return the limits of connections, cut to what the process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.connections_max + FILES_RESERVED
    if soft < wanted and hard != soft:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        soft = max(soft, most)
    connections_max = settings.connections_max
    if soft < wanted:
        connections_max = max(1, soft - FILES_RESERVED)
        logger.warning(
            "at most %d connections, not %d: the process may open %d files (ulimit -n)",
            connections_max,
            settings.connections_max,
            soft,
        )
    return ServerLimits(
        connections_max=connections_max,
        handshake_timeout_s=settings.handshake_timeout_s,
        write_buffer_bytes_max=settings.write_buffer_bytes_max,
        instruct_timeout_s=settings.instruct_timeout_s,
        awake_s=settings.awake_s,
    )


def _configuration(
    settings: MasterSettings,
    rpc_sockets: list[socket.socket],
    admin_sockets: list[socket.socket],
    public: Address,
) -> Configuration:
    written = settings.written()
    return Configuration(
        options=[
            ConfiguredOption(
                name=option.name,
                value=written[option.name],
                default=option.default,
                flag=option.flag,
                variable=option.variable,
                about=option.about,
            )
            for option in settings.options()
        ],
        rpc_addresses=[str(address) for address in bound_addresses(rpc_sockets)],
        admin_addresses=[str(address) for address in bound_addresses(admin_sockets)],
        advertise=str(public),
    )


def _joined(addresses: list[Address]) -> str:
    return ",".join(str(address) for address in addresses)
