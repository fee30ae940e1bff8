"""The FastAPI application: paths, parameters, documented errors.

Names of namespaces and keys are query parameters, not parts of the path: a key may hold slashes,
dots, newlines or be ``..``, which proxies and clients rewrite in a path. What removes something is
a DELETE, which a foreign web page cannot make a browser send here; what else changes something is
refused if a foreign page had it sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute

from mooncake_master.admin import models, page
from mooncake_master.admin.service import checked_limit
from mooncake_store import limits
from mooncake_store.errors import (
    AttemptExpired,
    CallerError,
    CapacityError,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    ManifestMismatch,
    NotLeader,
    NotSupported,
    ObjectNotFound,
    PutUnderWay,
    StaleEpoch,
    StaleTerm,
    StoreError,
    UnknownNode,
    VersionConflict,
)
from mooncake_store.types import NodeState, Tier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mooncake_master.admin.service import AdminService

PREFIX: Final = "/api/v1"
DRAIN_TIMEOUT_S: Final = 600.0
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

STATUS_OF: Final[dict[type[StoreError], int]] = {
    ObjectNotFound: 404,
    UnknownNode: 404,
    ManifestMismatch: 409,
    StaleEpoch: 409,
    VersionConflict: 409,
    PutUnderWay: 409,
    AttemptExpired: 409,
    StaleTerm: 409,
    NotSupported: 501,
    CallerError: 400,
    DeadlineExceeded: 504,
    NotLeader: 421,
    CapacityError: 503,
    InternalError: 500,
    StoreError: 502,
}
"""HTTP status of each error; the most specific class counts."""

_Namespace = Annotated[
    str, Query(description="Name of the namespace.", examples=["default"], min_length=1)
]
_LimitedNamespace = Annotated[
    str, Query(description="Name of the namespace; empty for the whole pool.")
]
_NodeName = Annotated[str, Path(description="Name of the node.")]
_Key = Annotated[str, Query(description="Key of the object, any text.", min_length=1)]


def create_application(
    service: AdminService,
    configuration: Callable[[], models.Configuration],
    metrics: Callable[[], Awaitable[bytes]],
    version: str,
) -> FastAPI:
    """Return the application.

    Args:
        service: Asks the core.
        configuration: Describes the running configuration.
        metrics: Returns the metrics in Prometheus' text format.
        version: Of the software.
    """
    application = FastAPI(
        title="mooncake-store master",
        version=version,
        description="Health, metrics and the index of a KV-cache pool, for operators.",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(_check_query), Depends(_check_parameters), Depends(_check_origin)],
        responses={
            400: {"model": models.Problem, "description": "The request cannot succeed as written."},
            504: {"model": models.Problem, "description": "The deadline passed."},
        },
    )
    _add_error_handlers(application)
    _add_health(application, service)
    _add_cluster(application, service, configuration)
    _add_node(application, service)
    _add_drains(application, service)
    _add_objects(application, service)
    _add_namespaces(application, service)
    _add_limits(application, service)

    @application.get("/metrics", response_class=Response, tags=["health"])
    async def metrics_text() -> Response:
        """All metrics in Prometheus' text format, read from the index at this moment."""
        return Response(await metrics(), media_type=METRICS_TYPE)

    @application.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def documentation() -> HTMLResponse:
        return HTMLResponse(page.render(application.openapi()))

    @application.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def start() -> HTMLResponse:
        return HTMLResponse(page.render(application.openapi()))

    return application


def _add_health(application: FastAPI, service: AdminService) -> None:
    @application.get("/health/live", tags=["health"])
    async def live() -> models.Live:
        """Answer as long as the process works; a restart helps when this does not answer."""
        return models.Live()

    @application.get(
        "/health/ready",
        tags=["health"],
        responses={503: {"model": models.Readiness, "description": "Not ready; see the reason."}},
    )
    async def ready(response: Response) -> models.Readiness:
        """Say whether clients are served: the index is complete and a node is there."""
        reason = service.not_ready_because()
        response.status_code = 503 if reason else 200
        return models.Readiness(ready=not reason, reason=reason)


def _add_cluster(
    application: FastAPI, service: AdminService, configuration: Callable[[], models.Configuration]
) -> None:
    @application.get(f"{PREFIX}/cluster", tags=["cluster"])
    async def cluster() -> models.Cluster:
        """Describe the cluster as a whole."""
        status = await service.cluster()
        nodes = [models.Node.of(node) for node in status.nodes]
        states: dict[str, int] = {}
        for node in nodes:
            states[node.state] = states.get(node.state, 0) + 1
        role, leader = service.leadership()
        return models.Cluster(
            cluster_id=status.cluster_id,
            role=role,
            leader=leader,
            term=status.term,
            software=status.software,
            uptime_s=status.uptime_s,
            ready=not service.not_ready_because(),
            nodes=states,
            used_bytes=sum(node.used_bytes for node in nodes),
            capacity_bytes=sum(node.capacity_bytes for node in nodes),
            under_replicated=status.counters["mooncake_master_under_replicated_count"],
            counters=status.counters,
        )

    @application.get(f"{PREFIX}/nodes", tags=["cluster"])
    async def nodes() -> models.Nodes:
        """List the storage nodes, dead ones included until they are forgotten."""
        return models.Nodes(nodes=[models.Node.of(node) for node in await service.nodes()])

    @application.get(f"{PREFIX}/segments", tags=["cluster"])
    async def segments() -> models.Segments:
        """List the memory segments and the SSD stores of all nodes."""
        return models.Segments(
            segments=[
                models.Segment(
                    incarnation=models.incarnation_text(segment.incarnation),
                    node=node.record.name,
                    tier=Tier(segment.tier).name.lower(),
                    used_bytes=used_bytes,
                    capacity_bytes=segment.bytes,
                    state=NodeState(node.record.state).name.lower(),
                )
                for node in await service.nodes()
                for segment, used_bytes in zip(
                    node.record.segments, node.segments_used_bytes, strict=True
                )
            ]
        )

    @application.get(f"{PREFIX}/config", tags=["cluster"])
    async def config() -> models.Configuration:
        """Dump the configuration that this process runs with."""
        return configuration()


def _add_node(application: FastAPI, service: AdminService) -> None:
    unknown: dict[int | str, dict[str, Any]] = {
        404: {"model": models.Problem, "description": "No such node."}
    }

    @application.get(f"{PREFIX}/node", tags=["cluster"], responses=unknown)
    async def node(
        name: Annotated[str, Query(description="Name of the node.")],
    ) -> models.Node:
        """Describe one storage node."""
        for each in await service.nodes():
            if each.record.name == name:
                return models.Node.of(each)
        raise UnknownNode(f"no node is named {name!r}", node=name)


def _add_drains(application: FastAPI, service: AdminService) -> None:
    path = f"{PREFIX}/nodes/{{name}}/drain"
    unknown: dict[int | str, dict[str, Any]] = {
        404: {"model": models.Problem, "description": "No such node."}
    }

    @application.post(path, tags=["cluster"], responses=unknown)
    async def drain(
        name: _NodeName,
        timeout_s: Annotated[
            float, Query(description="Time after which no more is copied.")
        ] = DRAIN_TIMEOUT_S,
    ) -> models.Drain:
        """Begin to take a node out of use: nothing new, and what it alone holds is copied."""
        return models.Drain.of(await service.drain(name, timeout_s))

    @application.get(path, tags=["cluster"], responses=unknown)
    async def describe_drain(name: _NodeName) -> models.Drain:
        """Say how far the drain of a node is."""
        return models.Drain.of(await service.describe_drain(name))

    @application.delete(path, tags=["cluster"], responses=unknown)
    async def undrain(name: _NodeName) -> models.Drain:
        """End a drain, or take back one that is over: the node gets new objects again."""
        return models.Drain.of(await service.undrain(name))


def _add_objects(application: FastAPI, service: AdminService) -> None:
    not_found: dict[int | str, dict[str, Any]] = {
        404: {"model": models.Problem, "description": "No such namespace or object."}
    }

    @application.get(f"{PREFIX}/objects", tags=["objects"], responses=not_found)
    async def objects(
        namespace: _Namespace = "default",
        prefix: Annotated[str, Query(description="Only keys that begin with this.")] = "",
        cursor: Annotated[str, Query(description="As the page before gave it.")] = "",
        limit: Annotated[int, Query(description=f"1 to {limits.SCAN_PAGE_MAX}.")] = 100,
    ) -> models.ObjectPage:
        """List objects, page by page; nothing is read or protected by it."""
        size = checked_limit(limit, limits.SCAN_PAGE_MAX)
        reply = await service.objects(namespace, prefix, cursor, size)
        found = [models.StoredObject.of(item) for item in reply.items]
        return models.ObjectPage(objects=found, cursor=reply.cursor)

    @application.get(f"{PREFIX}/object", tags=["objects"], responses=not_found)
    async def stat(key: _Key, namespace: _Namespace = "default") -> models.StoredObject:
        """Describe one object; nothing is read or protected by it."""
        return models.StoredObject.of(await service.stat(namespace, key))

    @application.delete(f"{PREFIX}/object", tags=["objects"], responses=not_found)
    async def remove(key: _Key, namespace: _Namespace = "default") -> models.Removal:
        """Remove one object: no reader gets it when this has answered."""
        await service.remove(namespace, key)
        return models.Removal(removed=key)

    @application.get(f"{PREFIX}/object/why", tags=["objects"], responses=not_found)
    async def why(key: _Key, namespace: _Namespace = "default") -> models.Explanation:
        """Explain why a key is not readable, or what it is if it is."""
        return models.Explanation.of(await service.why(namespace, key))


def _add_namespaces(application: FastAPI, service: AdminService) -> None:
    @application.get(f"{PREFIX}/namespaces", tags=["namespaces"])
    async def namespaces() -> models.Namespaces:
        """List the namespaces."""
        found = [models.Namespace.of(record) for record in await service.namespaces()]
        return models.Namespaces(namespaces=found)

    @application.delete(
        f"{PREFIX}/namespaces/objects",
        tags=["namespaces"],
        responses={404: {"model": models.Problem, "description": "No such namespace."}},
    )
    async def clear(namespace: _Namespace) -> models.Namespace:
        """Remove all objects of one namespace, which has to be named; it stays, its epoch grows."""
        return models.Namespace.of(await service.clear(namespace))


def _add_limits(application: FastAPI, service: AdminService) -> None:
    path = f"{PREFIX}/limits"

    @application.get(path, tags=["namespaces"])
    async def limits_of_pins() -> models.PinLimits:
        """Say how much may be pinned, and how much is."""
        return models.PinLimits.of(await service.pin_limits())

    @application.put(path, tags=["namespaces"])
    async def set_limit(
        pinned_share_max: Annotated[float, Query(description="Share of the pool, 0 to 1.")],
        namespace: _LimitedNamespace = "",
    ) -> models.PinLimits:
        """Bound what may be pinned; what is pinned already stays so."""
        return models.PinLimits.of(await service.set_pin_limit(namespace, pinned_share_max))

    @application.delete(path, tags=["namespaces"])
    async def take_limit_back(namespace: _LimitedNamespace = "") -> models.PinLimits:
        """Take a limit back: none for a namespace, the configured one for the pool."""
        return models.PinLimits.of(await service.set_pin_limit(namespace, None))


async def _check_query(request: Request) -> None:
    """Refuse a query that is no UTF-8: decoded leniently, it would name another key."""
    query = request.scope["query_string"].decode("ascii", "replace")
    try:
        parse_qsl(query, keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidArgument(f"the query is no percent-encoded UTF-8: {error}") from error


async def _check_parameters(request: Request) -> None:
    """Refuse parameters that nobody reads: what was meant to be said is not what would be done."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not route.path.startswith(PREFIX):
        return
    known = sorted(field.alias for field in route.dependant.query_params)
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        takes = ", ".join(known) or "none"
        raise InvalidArgument(f"no parameter {unknown[0]!r}; parameters here: {takes}")
    names = [name for name, _ in request.query_params.multi_items()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(f"{twice} is given more than once: a request is about one")
    headers = request.headers
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise InvalidArgument("requests have no body: parameters go into the query")


async def _check_origin(request: Request) -> None:
    """Refuse what a page of another site has a browser send, unless it only reads."""
    origin = request.headers.get("origin")
    if origin is None or request.method in {"GET", "HEAD"}:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise InvalidArgument("a page of another site may not change anything here")


def _add_error_handlers(application: FastAPI) -> None:
    @application.exception_handler(StoreError)
    async def store_error(_: Request, error: StoreError) -> JSONResponse:
        return _problem(status_of(error), error.code, str(error))

    @application.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        text = "; ".join(
            f"{'.'.join(str(part) for part in detail['loc'][1:])}: {detail['msg']}"
            for detail in error.errors()
        )
        return _problem(400, InvalidArgument.code, text)

    @application.exception_handler(404)
    async def no_such_path(request: Request, _: Exception) -> JSONResponse:
        return _problem(404, "not_found", f"no path {request.url.path!r}; /docs lists them")

    @application.exception_handler(405)
    async def no_such_method(request: Request, _: Exception) -> JSONResponse:
        what = f"{request.url.path} takes no {request.method}"
        return _problem(405, "method_not_allowed", f"{what}; /docs says what it takes")

    @application.exception_handler(Exception)
    async def mistake(_: Request, error: Exception) -> JSONResponse:
        """Answer in the one shape of answers; the trace goes to the log, by the server."""
        text = f"internal error, {type(error).__name__}: the master's log has the trace"
        return _problem(500, InternalError.code, text)


def status_of(error: StoreError) -> int:
    """Return the HTTP status that an error is answered with."""
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def _problem(status: int, code: str, message: str) -> JSONResponse:
    body = models.Problem(code=code, message=message)
    return JSONResponse(body.model_dump(), status_code=status)
