"""The promises about speed, one by one. What each means is defined in docs/performance.md."""

from dataclasses import dataclass

from tests.bench.disk import IN_FLIGHT
from tests.bench.parts import bulk_metric
from tests.bench.rows import RowSpec
from tests.bench.scale import BULK_BYTES, EXISTS_BATCHES, MIB


@dataclass(frozen=True, slots=True)
class _Against:
    """Something to compare with: its words, its part of a row's name, its systems."""

    words: str
    suffix: str
    systems: tuple[str, ...]


_CPP = _Against("C++ store", "vs-cpp", ("mooncake-cpp",))
_BEST_CPP = _Against("C++ store", "vs-cpp", ("mooncake-cpp", "mooncake-cpp-tuned"))
"""With its defaults, and with pooled connections and slices of 1 MiB: the better of the two is
the reference wherever payload crosses a socket in bulk."""

_MEMCACHED = _Against("memcached", "vs-memcached", ("memcached",))
_BEST_RIVAL = _Against(
    "best rival", "vs-best-rival", (*_BEST_CPP.systems, "redis", *_MEMCACHED.systems)
)
_SOCKET = _Against("raw socket", "vs-socket", ("raw-socket", "raw-socket-waitall"))
_CPP_DISK = _Against("C++ store", "vs-cpp", ("mooncake-cpp-disk",))
_FIO = _Against("fio, O_DIRECT", "vs-fio", ("fio",))
_MEMCPY = _Against("memcpy", "vs-memcpy", ("memcpy",))

_PATHS = {"tcp": ("store-tcp", "TCP"), "default": ("store-default", "default path")}
"""{part of a row's name: (our configuration, its words)}"""

_CPU_SHARE_MAX = 0.7
"""Of the C++ store's CPU time. A ratio says how many times better ours is, so it is 1 over it."""

_MASTER_BYTES_PER_KEY_MAX = 700
_VIEW_SHARE_MAX = 0.01
"""Of the time of a copy."""


def _spec(
    name: str, title: str, measured: tuple[str, str], against: _Against, wanted: float
) -> RowSpec:
    system, metric = measured
    return RowSpec(
        name=f"{name}-{against.suffix}",
        title=title,
        against=against.words,
        system=system,
        metric=metric,
        wanted=wanted,
        references=against.systems,
    )


def _bulk_rows() -> list[RowSpec]:
    rows = []
    for size in BULK_BYTES:
        measured = ("store-tcp", bulk_metric("get_into", size))
        name, title = f"get-into-{size // MIB}mib-tcp", f"get_into {size // MIB} MiB, TCP, verified"
        rows.append(_spec(name, title, measured, _SOCKET, 0.8))
        rows.append(_spec(name, title, measured, _BEST_RIVAL, 1.5))
    for size in BULK_BYTES:
        for path, (system, words) in _PATHS.items():
            measured = (system, bulk_metric("put", size))
            name, title = f"put-{size // MIB}mib-{path}", f"put {size // MIB} MiB, {words}"
            rows.append(_spec(name, title, measured, _BEST_CPP, 1.5))
            rows.append(_spec(name, title, measured, _MEMCACHED, 1))
    return rows


def _local_rows() -> list[RowSpec]:
    shm = "store-shm"
    return [
        _spec(
            "get-into-16mib-shm",
            "get_into 16 MiB, shared memory, verified",
            (shm, "copy"),
            _MEMCPY,
            0.6,
        ),
        RowSpec(
            name="get-into-16mib-shm-unverified-vs-memcpy",
            title="get_into 16 MiB, shared memory, unverified",
            against=_MEMCPY.words,
            system=shm,
            metric="copy unverified",
            wanted=0.85,
            references=_MEMCPY.systems,
            reference_metric="copy",
        ),
        RowSpec(
            name="view-16mib-shm-vs-memcpy",
            title="view of 16 MiB, shared memory, leased",
            against=_MEMCPY.words,
            system=shm,
            metric="view",
            wanted=1 / _VIEW_SHARE_MAX,
            references=_MEMCPY.systems,
            reference_metric="copy time",
        ),
    ]


def _small_rows() -> list[RowSpec]:
    get, put = "get 4 KiB", "put 4 KiB"
    cold, leased, local = ("store-tcp-cold", get), ("store-tcp", get), ("store-shm", get)
    return [
        _spec("get-4kib-cold", f"{get}, TCP, cold", cold, _CPP, 1),
        _spec("get-4kib-leased", f"{get}, TCP, leased location", leased, _CPP, 2),
        _spec("get-4kib-shm-leased", f"{get}, shared memory, leased location", local, _CPP, 10),
        *(
            _spec(f"put-4kib-{path}", f"{put}, {words}", (system, put), _CPP, 1)
            for path, (system, words) in _PATHS.items()
        ),
    ]


def _batch_rows() -> list[RowSpec]:
    # The cold configuration: as the C++ client does, it asks its master for every batch.
    cold, batch = "store-tcp-cold", "batch of 128 x 64 KiB"
    return [
        _spec("batch-get", f"get {batch}, TCP, cold", (cold, "get batch"), _BEST_CPP, 2),
        _spec("batch-put", f"put {batch}, TCP", (cold, "put batch"), _BEST_CPP, 2),
        RowSpec(
            name="batch-get-round-trips",
            title=f"get {batch}, master round trips",
            against="limit",
            system=cold,
            metric="round trips",
            wanted=1,
            limit=1,
        ),
    ]


def _master_rows() -> list[RowSpec]:
    tcp, memory = "store-tcp", "master memory per key of 64 characters"
    return [
        _spec("exists", "exists, one client", (tcp, "exists"), _CPP, 0.9),
        *(
            _spec(
                f"exists-batch-{count}",
                f"exists in batches of {count}, per master CPU",
                (tcp, f"exists x{count}"),
                _CPP,
                1.2,
            )
            for count in EXISTS_BATCHES
        ),
        _spec(
            "cpu-16mib",
            "CPU of 16 MiB gets, all processes",
            (tcp, "cpu"),
            _CPP,
            round(1 / _CPU_SHARE_MAX, 2),
        ),
        RowSpec(
            name="master-memory-vs-limit",
            title=memory,
            against="limit",
            system=tcp,
            metric="memory",
            wanted=1,
            limit=_MASTER_BYTES_PER_KEY_MAX,
        ),
        _spec("master-memory", memory, (tcp, "memory"), _CPP, 1),
    ]


def _disk_rows() -> list[RowSpec]:
    rows = []
    for size in BULK_BYTES:
        mib = size // MIB
        to_disk = ("store-disk", f"to disk {mib} MiB")
        from_disk = ("store-disk", f"from disk {mib} MiB")
        title = f"demotion of {mib} MiB objects, puts included"
        rows.append(_spec(f"to-disk-{mib}mib", title, to_disk, _FIO, 0.8))
        title = f"get_into {mib} MiB from disk, {IN_FLIGHT} in flight, TCP, verified"
        rows.append(_spec(f"from-disk-{mib}mib", title, from_disk, _FIO, 0.7))
        rows.append(_spec(f"from-disk-{mib}mib", title, from_disk, _CPP_DISK, 2))
    for system, name, path in (
        ("store-disk-default", "default", "shared memory, leased"),
        ("store-disk-tcp", "tcp", "TCP, leased"),
        ("store-disk", "tcp-cold", "TCP, location not known"),
    ):
        rows.append(
            RowSpec(
                name=f"dram-p99-while-writing-{name}-vs-idle",
                title=f"p99 of get_into 64 KiB from memory while the disk is written, {path}",
                against="the same, idle",
                system=system,
                metric="p99 writing",
                wanted=0.5,
                references=(system,),
                reference_metric="p99 idle",
            )
        )
    return rows


ROWS = [
    *_bulk_rows(),
    *_local_rows(),
    *_small_rows(),
    *_batch_rows(),
    *_master_rows(),
    *_disk_rows(),
]
