"""What is staged, and what the idle GPU waits for: by construction, not by measurement."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    CPU_QUEUE,
    HOST_CODE,
    MEMORY,
    NETWORK,
    PEER,
    REQUESTS,
    STORAGE,
    WORKER_CPU,
)
from scenarios.cgroups import Limits
from stacks.cases_services import SERVICES, Row
from stacks.cases_strangers import STRANGERS

Labels = frozenset[str]
"""The labels accepted for a GPU; none: it is kept busy."""
HEALTHY: Labels = frozenset()
WAITING: Labels = frozenset({ASLEEP, NETWORK, REQUESTS})
MEBIBYTE = 2**20
SLOW_DISK = Limits(read_bytes_per_second=16 * MEBIBYTE)
LITTLE_MEMORY = Limits(memory_bytes=128 * MEBIBYTE)


@dataclass(frozen=True, slots=True)
class Case:
    """One loop as people write it."""

    name: str
    family: str
    command: tuple[str, ...]
    """Arguments to the Python of `venv`."""
    expected: tuple[Labels, ...]
    """The accepted labels of each GPU."""
    venv: str = "light"
    servers: tuple[str, ...] = ()
    """From servers/table.py: remote machines, or clients of the loop."""
    single_process: bool = True
    """One process tree with one holder, not several ranks or holders."""
    quick: bool = False
    """For CI: cheap to install and to run."""
    limits: Limits | None = None
    programs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    warm_seconds: float = 3.0
    """Before it is measured."""

    @property
    def title(self) -> str:
        """A unique name."""
        return f"{self.family}: {self.name}"

    @property
    def held_out(self) -> bool:
        """Whether nobody tunes on it: a third are, drawn by title, whatever else there is."""
        return int(hashlib.sha256(self.title.encode()).hexdigest(), 16) % 3 == 0

    @property
    def light(self) -> bool:
        """Whether all that it does is wait, so that others of the kind may run beside it."""
        waits = all(one and one <= WAITING for one in self.expected)
        return waits and self.venv == "light" and self.limits is None

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return len(self.expected)

    @property
    def needs_disk(self) -> bool:
        """Whether its files must be on a disk, not in memory."""
        return self.limits is not None


def labels(text: str) -> tuple[Labels, ...]:
    """`peer|asleep; worker_cpu`: the labels accepted for each GPU; `busy` for none."""
    return tuple(
        frozenset(label.strip() for label in gpu.split("|") if label.strip() != "busy")
        for gpu in text.split(";")
    )


def _case(  # noqa: PLR0913 - a table
    family: str,
    name: str,
    loop: str,
    expected: str,
    *,
    venv: str = "light",
    servers: str = "",
    programs: str = "",
    single: bool = True,
    quick: bool = False,
    limits: Limits | None = None,
    environment: Mapping[str, str] | None = None,
    note: str = "",
) -> Case:
    """`loop`: a module of loops/ and its arguments, or `-m` and any other module."""
    words = tuple(loop.split())
    command = words if words[0] == "-m" else ("-m", f"stacks.loops.{words[0]}", *words[1:])
    return Case(
        name=name,
        family=family,
        command=command,
        expected=labels(expected),
        venv=venv,
        servers=tuple(servers.split()),
        single_process=single,
        quick=quick,
        limits=limits,
        programs=tuple(programs.split()),
        environment=environment or {},
        note=note,
    )


def _http(name: str, loop: str, expected: str = NETWORK, *, quick: bool = False) -> Case:
    servers = "tls" if "tls" in loop else "http"
    return _case("http", name, f"http {loop}", expected, servers=servers, quick=quick)


def _socket(name: str, loop: str, servers: str = "lines") -> Case:
    return _case("http", name, f"sockets {loop}", NETWORK, servers=servers)


def _s3(name: str, loop: str, expected: str = NETWORK) -> Case:
    return _case("object storage", name, f"s3 {loop}", expected, servers="s3", venv="s3")


HTTP = (
    _http("requests, a session", "requests"),
    _http("requests, with a timeout", "requests-timeout", quick=True),
    _http("requests, a connection each", "requests-bare"),
    _http("requests in 4 threads", "requests-timeout threads"),
    _http("requests in 2 workers", "requests-timeout workers", quick=True),
    _http("requests, a stream that trickles", "requests-stream"),
    _http("requests over TLS", "requests-tls", quick=True),
    _http("urllib3", "urllib3"),
    _http("urllib", "standard"),
    _http("urllib over TLS, in 2 workers", "standard-tls workers"),
    _http("httpx", "httpx"),
    _http("httpx, async", "httpx-async"),
    _http("aiohttp", "aiohttp", quick=True),
    _http("aiohttp in 2 workers", "aiohttp workers"),
    _http("fsspec, whole files", "fsspec"),
    _http("fsspec, ranges of a file", "fsspec-file"),
    _http("fsspec in 2 workers", "fsspec workers"),
    _socket("socket, blocking", "blocking"),
    _socket("socket, with a timeout", "timeout"),
    _socket("socket, select", "select"),
    _socket("socket, asyncio's streams", "streams"),
    _socket("socket, in a prefetching thread that is too slow", "timeout thread"),
    _socket("socket, a server that pushes", "pushed", "push"),
    _socket("socket, a server that pushes, in 2 workers", "pushed workers", "push"),
    _http("healthy: requests, prefetched by 8 threads", "requests-timeout prefetched", "busy"),
    _http("healthy: urllib3, prefetched by 8 threads", "urllib3 prefetched", "busy", quick=True),
)
OBJECT_STORAGE = (
    _s3("boto3, get_object", "boto3"),
    _s3("boto3, get_object in 2 workers", "boto3 workers"),
    _s3("boto3, download in parts", "boto3-download"),
    _s3("s3fs", "s3fs"),
    _s3("Arrow's S3", "arrow"),
    _s3("healthy: boto3, prefetched by 8 threads", "boto3 prefetched", "busy"),
    _case("object storage", "gRPC, unary", "rpc unary", NETWORK, servers="rpc", quick=True),
    _case("object storage", "gRPC, a stream", "rpc stream", NETWORK, servers="rpc"),
    _case(
        "object storage",
        "healthy: gRPC, prefetched by 8 threads",
        "rpc unary prefetched",
        "busy",
        servers="rpc",
    ),
)


def _asleep(name: str, loop: str, *, quick: bool = False, note: str = "") -> Case:
    return _case("asleep", name, f"asleep {loop}", ASLEEP, quick=quick, note=note)


ASLEEP_CASES = (
    _asleep("sleeps between steps", "sleep", quick=True),
    _asleep("stopped by SIGSTOP", "stopped", quick=True),
    _asleep("an event that nobody sets", "event"),
    _asleep("a lock that it holds itself", "lock"),
    _asleep("waits with a timeout, in a loop", "timeout"),
    _asleep("two threads in a deadlock", "deadlock"),
    _asleep("a child that sleeps", "child"),
    _asleep("a signal that never comes", "signal"),
    _asleep("an event loop with nothing on it", "loop"),
    _asleep("input from a pipe", "pipe"),
    _asleep("input from a pipe, in select", "poll-pipe"),
    _asleep("input from a terminal", "prompt", quick=True),
    _asleep("workers locked up", "workers"),
    _case("asleep", "healthy: sleeps little between steps", "asleep quick", "busy"),
)


def _threads(name: str, loop: str, expected: str, *, quick: bool = False, note: str = "") -> Case:
    return _case("threads", name, f"threads {loop}", expected, quick=quick, note=note)


THREADS = (
    _threads("a thread that decodes", "decoder", WORKER_CPU, quick=True),
    _threads("a thread that decodes in Python", "python-decoder", WORKER_CPU),
    _threads("2 threads that decode", "decoders", WORKER_CPU),
    _threads("4 threads a core that decode", "crowd", CPU_QUEUE),
    _threads("decoding in the main thread", "decode-here", HOST_CODE),
    _threads("autograd's thread", "autograd", HOST_CODE, quick=True),
    _threads("autograd's thread, beside idle workers", "autograd-workers", HOST_CODE),
    _threads("BLAS in the main thread, a core", "blas-1", HOST_CODE),
    _threads("BLAS in the main thread, all cores", "blas", HOST_CODE),
    _threads("BLAS in a worker", "blas-worker", WORKER_CPU),
    _threads("BLAS in 4 workers of 2 threads", "blas-workers", CPU_QUEUE),
    _threads("healthy: a thread that decodes ahead", "prefetched", "busy"),
    _case("threads", "a shell's pipeline that decodes", "pipeline", WORKER_CPU, single=False),
    _case("threads", "healthy: a shell's pipeline", "pipeline healthy", "busy", single=False),
)


def _file(  # noqa: PLR0913 - a table
    name: str,
    loop: str,
    expected: str,
    *,
    venv: str = "light",
    limits: Limits | None = SLOW_DISK,
    servers: str = "",
    quick: bool = False,
    note: str = "",
) -> Case:
    return _case(
        "files",
        name,
        f"files {loop}",
        expected,
        venv=venv,
        limits=limits,
        servers=servers,
        quick=quick,
        note=note,
    )


def _mounted(name: str, loop: str, servers: str, *, quick: bool = False) -> Case:
    return _file(name, f"mounted {loop}", STORAGE, limits=None, servers=servers, quick=quick)


FILES = (
    _file("cold file, read", "buffered", STORAGE),
    _file("cold file, read in 2 workers", "buffered workers", STORAGE),
    _file("cold file, in a prefetching thread that is too slow", "buffered thread", STORAGE),
    _file("cold small files", "small", STORAGE),
    _file("cold small files, in 4 threads", "small threads", STORAGE),
    _file("O_DIRECT", "direct", STORAGE),
    _file("O_DIRECT, in 4 threads", "direct threads", STORAGE),
    _file("Linux AIO", "aio", STORAGE),
    _file("io_uring", "uring", STORAGE),
    _file("mmap of a cold file", "mapped", STORAGE),
    _file("mmap of a cold file, in 2 workers", "mapped workers", STORAGE),
    _file(
        "mmap of more than the memory limit",
        "random",
        MEMORY,
        limits=LITTLE_MEMORY,
        note="what is read has been evicted before",
    ),
    _file(
        "mmap of more than the limit, in 2 workers", "random workers", MEMORY, limits=LITTLE_MEMORY
    ),
    _file("numpy.memmap of a cold file", "memmap", STORAGE),
    _file("Parquet, cold", "parquet", STORAGE, venv="files"),
    _file(
        "Parquet, decoded in the main thread",
        "parquet-decode",
        HOST_CODE,
        venv="files",
        limits=None,
    ),
    _file(
        "Parquet, decoded by Arrow's threads",
        "parquet-threads",
        WORKER_CPU,
        venv="files",
        limits=None,
    ),
    _file(
        "Parquet, decoded in 2 workers",
        "parquet-decode workers",
        WORKER_CPU,
        venv="files",
        limits=None,
    ),
    _file("HDF5, cold", "hdf5", STORAGE, venv="files"),
    _file("HDF5, unpacked in the main thread", "hdf5-decode", HOST_CODE, venv="files", limits=None),
    _file(
        "HDF5, unpacked in 2 workers", "hdf5-decode workers", WORKER_CPU, venv="files", limits=None
    ),
    _file("LMDB, cold", "lmdb", STORAGE, venv="files"),
    _mounted("FUSE", "main", "fuse"),
    _mounted("FUSE with direct_io", "main", "fuse-direct", quick=True),
    _mounted("FUSE, in 4 threads", "threads", "fuse"),
    _mounted("FUSE, in 2 workers", "workers", "fuse"),
    _mounted("FUSE with direct_io, in 2 workers", "workers", "fuse-direct"),
    _file("checkpoints, forced to the disk", "checkpoint", STORAGE, limits=None),
    _file("a journal, forced to the disk", "journal", STORAGE, limits=None),
    _file("healthy: mmap of a warm file", "quick", "busy", limits=None),
)


def _serving(  # noqa: PLR0913 - a table
    name: str,
    loop: str,
    expected: str,
    *,
    servers: str = "",
    single: bool = True,
    quick: bool = False,
    venv: str = "light",
    environment: Mapping[str, str] | None = None,
    note: str = "",
) -> Case:
    return _case(
        "serving",
        name,
        loop,
        expected,
        servers=servers,
        single=single,
        quick=quick,
        venv=venv,
        environment=environment,
        note=note,
    )


def _gunicorn(  # noqa: PLR0913 - a table
    name: str,
    options: str,
    expected: str,
    *,
    work: str = "",
    servers: str = "",
    single: bool = True,
) -> Case:
    loop = f"-m gunicorn -b 127.0.0.1:{{port}} {options} stacks.loops.wsgi:application"
    environment = {"STACKS_WORK": work} if work else {}
    return _serving(name, loop, expected, servers=servers, single=single, environment=environment)


_EITHER = f"{WORKER_CPU}|{HOST_CODE}"
_NO_JOB = f"{ASLEEP}|{REQUESTS}"
SERVING = (
    _serving("uvicorn, idle", "web asgi infer", REQUESTS, quick=True),
    _serving("Starlette, idle", "web starlette infer", REQUESTS),
    _serving("http.server, idle", "web standard infer", REQUESTS),
    _serving("uvicorn, asked seldom", "web asgi-threads infer", REQUESTS, servers="ask-seldom"),
    _serving("uvicorn, code on the event loop", "web asgi burn", HOST_CODE, servers="ask-much"),
    _serving("uvicorn, code in a thread", "web asgi-threads burn", HOST_CODE, servers="ask"),
    _serving("Starlette, code in a thread", "web starlette burn", HOST_CODE, servers="ask"),
    _serving("http.server, code in a thread", "web standard burn", HOST_CODE, servers="ask"),
    _serving(
        "uvicorn, asks another service in a thread",
        "web asgi-threads upstream",
        NETWORK,
        servers="http ask",
    ),
    _serving(
        "uvicorn, asks another service, async",
        "web asgi upstream-async",
        NETWORK,
        servers="http ask",
    ),
    _serving(
        "http.server, asks another service", "web standard upstream", NETWORK, servers="http ask"
    ),
    _serving("healthy: uvicorn, asked much", "web asgi-threads infer", "busy", servers="ask-much"),
    _serving(
        "uvicorn, threads that decode",
        "web asgi-threads unpack",
        CPU_QUEUE,
        servers="ask-crowd",
        note="more threads than cores, which hold no lock of the interpreter's",
    ),
    _gunicorn("gunicorn, sync, idle", "-k sync -w 1", REQUESTS),
    _gunicorn("gunicorn, 2 sync workers, idle", "-k sync -w 2", REQUESTS, single=False),
    _gunicorn("gunicorn, gthread, idle", "-k gthread --threads 4 -w 1", REQUESTS),
    _gunicorn("gunicorn, code", "-k sync -w 1", HOST_CODE, work="burn", servers="ask"),
    _gunicorn(
        "gunicorn, gthread, code",
        "-k gthread --threads 4 -w 1",
        HOST_CODE,
        work="burn",
        servers="ask",
    ),
    _gunicorn(
        "healthy: gunicorn, gthread, asked much",
        "-k gthread --threads 4 -w 1",
        "busy",
        servers="ask-much",
    ),
    _serving("gRPC server, idle", "calls infer", REQUESTS),
    _serving("gRPC server, code", "calls burn", HOST_CODE, servers="call"),
    _serving("healthy: gRPC server, asked much", "calls infer", "busy", servers="call-much"),
    _serving("engine behind a server, ZMQ, idle", "engine zmq infer", REQUESTS, quick=True),
    _serving("engine behind a server, pipe, idle", "engine pipe infer", REQUESTS),
    _serving("engine, ZMQ, asked seldom", "engine zmq infer", REQUESTS, servers="ask-seldom"),
    _serving(
        "engine, ZMQ, the server tokenises",
        "engine zmq burn",
        _EITHER,
        servers="ask",
        note="the server is no process of the loop's, but it feeds it like a worker",
    ),
    _serving(
        "engine, pipe, the server tokenises",
        "engine pipe burn",
        _EITHER,
        servers="ask",
        note="the server is no process of the loop's, but it feeds it like a worker",
    ),
    _serving(
        "engine, ZMQ, the server asks another service",
        "engine zmq upstream",
        NETWORK,
        servers="http ask",
    ),
    _serving("healthy: engine, ZMQ, asked much", "engine zmq infer", "busy", servers="ask-much"),
    _serving(
        "subscribed to a broker",
        "broker subscribed",
        ASLEEP,
        servers="redis",
        note="an open connection on which nothing is asked for: no network is waited for",
    ),
    _serving(
        "a queue's worker without a job, BLPOP",
        "broker waiting",
        _NO_JOB,
        servers="redis",
        note="it waits for somebody to have work for it",
    ),
    _serving(
        "a queue's worker without a job, asking each second",
        "broker asking",
        _NO_JOB,
        servers="redis",
        note="it waits for somebody to have work for it",
    ),
    _serving("notebook, idle", "notebook idle", ASLEEP, venv="notebook"),
    _serving("notebook, a cell that sleeps", "notebook sleep", ASLEEP, venv="notebook"),
    _serving("notebook, a cell with a slow loop", "notebook burn", HOST_CODE, venv="notebook"),
)


def _waits(name: str, how: str, expected: str, *, family: str = "http", warm: float = 3.0) -> Case:
    server = _WAITS_FOR.get(how, how)
    case = _case(family, name, f"waits {how}", expected, servers=server)
    return replace(case, warm_seconds=warm)


_WAITS_FOR = {
    "pushed": "pushes",
    "two-threads": "queue",
    "subscriber": "pushes",
    "datagrams-thread": "datagrams",
    "upload": "takes",
    "upload-async": "takes",
    "answers": "client",
    "pings": "tracker",
    "worker": "redis",
}
WAITS = (
    _waits("socket, a server that always takes 5 s", "late", NETWORK, warm=18.0),
    _waits("socket, a tracker that answers with six bytes", "tracker", NETWORK),
    _waits("socket, small messages pushed to an event loop", "pushed", NETWORK),
    _waits("socket, asked by one thread, received by another", "two-threads", NETWORK),
    _waits("socket, a subscriber thread that acknowledges", "subscriber", NETWORK),
    _waits("datagrams", "datagrams", NETWORK),
    _waits("datagrams, in a thread", "datagrams-thread", NETWORK),
    _waits("socket, an upload that is taken slowly", "upload", NETWORK),
    _waits("asyncio, an upload that is taken slowly", "upload-async", NETWORK),
    _waits("socket, an answer that is read slowly", "answers", NETWORK, family="serving"),
    _waits("messages that never come, and pings", "pings", ASLEEP, family="serving"),
    _waits("a queue's worker without a job, that gossips", "worker", _NO_JOB, family="serving"),
)


def _service(row: Row) -> Case:
    case = _case(
        *(row.family, row.name, row.loop, row.expected),
        servers=row.servers,
        venv=row.venv,
        single=row.single,
    )
    return replace(case, warm_seconds=row.warm_seconds)


def _beside(
    name: str, loop: str, expected: str, *, servers: str = "", limits: Limits | None = None
) -> Case:
    return _case("beside", name, f"beside {loop}", expected, servers=servers, limits=limits)


BESIDE = (
    _beside("slow main, idle workers", "workers main", HOST_CODE),
    _beside("fetching main, idle workers", "workers fetch", NETWORK, servers="lines"),
    _beside("main that reads the disk, idle workers", "workers direct", STORAGE, limits=SLOW_DISK),
    _beside("slow main, an open connection", "connection main", HOST_CODE, servers="lines"),
    _beside("slow worker, an open connection", "connection worker", WORKER_CPU, servers="lines"),
    _beside("slow thread, an open connection", "connection thread", WORKER_CPU, servers="lines"),
    _beside("sleeping main, an open connection", "connection sleep", ASLEEP, servers="lines"),
    _beside("slow main, a metrics server", "metrics main", HOST_CODE),
    _beside("slow worker, a metrics server", "metrics worker", WORKER_CPU),
    _beside("fetching main, a metrics server", "metrics fetch", NETWORK, servers="lines"),
    _beside("slow main, a child that logs", "logger main", HOST_CODE, servers="lines"),
    _beside("slow worker, a child that logs", "logger worker", WORKER_CPU, servers="lines"),
    _beside("sleeping main, a child that logs", "logger sleep", ASLEEP, servers="lines"),
    _beside("slow thread, a child that sleeps", "child thread", WORKER_CPU),
    _beside("fetching main, a child that sleeps", "child fetch", NETWORK, servers="lines"),
    _beside("slow main, a thread that writes", "writer main", HOST_CODE),
    # One that polls its thread sleeps the same way.
    _beside("sleeping main, a thread that writes", "writer sleep", f"{ASLEEP}|{STORAGE}"),
    _beside("healthy: an open connection", "connection quick", "busy", servers="lines"),
    _beside("healthy: a thread that writes", "writer quick", "busy"),
)


def _ranks(name: str, loop: str, expected: str, *, servers: str = "", quick: bool = False) -> Case:
    return _case(
        "ranks", name, f"ranks {loop}", expected, servers=servers, single=False, quick=quick
    )


RANKS = (
    _ranks(
        "two ranks over sockets, one with a slow main", "main", f"{PEER};{HOST_CODE}", quick=True
    ),
    _ranks("two ranks over sockets, one with a slow worker", "workers", f"{PEER};{WORKER_CPU}"),
    _ranks(
        "two ranks over sockets, one that fetches", "fetch", f"{PEER};{NETWORK}", servers="http"
    ),
    _ranks("healthy: two ranks over sockets", "healthy", "busy;busy"),
)


def _loader(  # noqa: PLR0913 - a table
    name: str,
    loop: str,
    expected: str,
    *,
    servers: str = "",
    limits: Limits | None = None,
    programs: str = "",
    note: str = "",
) -> Case:
    return _case(
        "DataLoader",
        name,
        f"loader {loop}",
        expected,
        venv="torch",
        servers=servers,
        limits=limits,
        programs=programs,
        note=note,
    )


DATA_LOADER = (
    _loader("no worker", "burn 0", HOST_CODE),
    _loader("1 worker, fork", "burn 1 fork", WORKER_CPU),
    _loader("1 worker, spawn", "burn 1 spawn", WORKER_CPU),
    _loader("1 worker, forkserver", "burn 1 forkserver", WORKER_CPU),
    _loader("1 worker, started anew each epoch", "burn 1 fork respawned", WORKER_CPU),
    _loader("1 worker, iterable", "burn 1 fork stream", WORKER_CPU),
    _loader("8 workers on 2 cores", "burn 8 fork", CPU_QUEUE),
    _loader("1 worker that decodes in threads", "threads 1", WORKER_CPU),
    _loader("1 worker, a program for each sample", "child 1", WORKER_CPU),
    _loader("no worker, a program for each sample", "child 0", WORKER_CPU),
    _loader("2 workers that fetch", "fetch 2", NETWORK, servers="http"),
    _loader("2 workers that fetch, spawn", "fetch 2 spawn", NETWORK, servers="http"),
    _loader("no worker, fetches", "fetch 0", NETWORK, servers="http"),
    _loader("2 workers with curl", "curl 2", NETWORK, servers="http", programs="curl"),
    _loader("no worker, with curl", "curl 0", NETWORK, servers="http", programs="curl"),
    _loader("2 workers, O_DIRECT", "direct 2", STORAGE, limits=SLOW_DISK),
    _loader("2 workers, forkserver, O_DIRECT", "direct 2 forkserver", STORAGE, limits=SLOW_DISK),
    _loader("2 workers on a lock", "locked 2", ASLEEP),
    _loader("healthy: 2 workers", "quick 2", "busy"),
    _loader("healthy: no worker", "quick 0", "busy"),
    _case("DataLoader", "torch.save, forced to the disk", "checkpoints", STORAGE, venv="torch"),
    _case(
        "DataLoader", "healthy: torch.save in a thread", "checkpoints thread", "busy", venv="torch"
    ),
)


def _collective(
    name: str, kind: str, expected: str, *, servers: str = "", limits: Limits | None = None
) -> Case:
    start, _, kind = kind.partition(" ")
    loop = f"collective {kind} spawn"
    if start == "torchrun":
        run = "-m torch.distributed.run --nproc_per_node 2 --master_port {port}"
        loop = f"{run} -m stacks.loops.collective {kind}"
    return _case(
        "torch.distributed",
        name,
        loop,
        expected,
        venv="torch",
        servers=servers,
        limits=limits,
        single=False,
    )


COLLECTIVES = (
    _collective("torchrun, one with a slow worker", "torchrun burn", f"{PEER};{WORKER_CPU}"),
    _collective(
        "torchrun, one that fetches", "torchrun fetch", f"{PEER};{NETWORK}", servers="http"
    ),
    _collective(
        "torchrun, one that fetches in main",
        "torchrun fetch-main",
        f"{PEER};{NETWORK}",
        servers="http",
    ),
    _collective("torchrun, DDP, one with a slow main", "torchrun main", f"{PEER};{HOST_CODE}"),
    _collective(
        "torchrun, one with a slow disk", "torchrun direct", f"{PEER};{STORAGE}", limits=SLOW_DISK
    ),
    _collective(
        "torchrun, both with a slow worker", "torchrun both-burn", f"{WORKER_CPU};{WORKER_CPU}"
    ),
    _collective("mp.spawn, one with a slow worker", "spawn burn", f"{PEER};{WORKER_CPU}"),
    _collective("mp.spawn, one that fetches", "spawn fetch", f"{PEER};{NETWORK}", servers="http"),
    _collective("mp.spawn, DDP, one with a slow main", "spawn main", f"{PEER};{HOST_CODE}"),
    _collective(
        "mp.spawn, one with a slow disk", "spawn direct", f"{PEER};{STORAGE}", limits=SLOW_DISK
    ),
    _collective("healthy: torchrun", "torchrun quick", "busy;busy"),
    _collective("healthy: mp.spawn", "spawn quick", "busy;busy"),
)


def _lightning(
    name: str, loop: str, expected: str, *, servers: str = "", single: bool = True
) -> Case:
    return _case(
        "Lightning",
        name,
        f"trainer {loop}",
        expected,
        venv="lightning",
        servers=servers,
        single=single,
    )


LIGHTNING = (
    _lightning("a slow worker", "burn 1", WORKER_CPU),
    _lightning("no worker", "burn 0", HOST_CODE),
    _lightning("2 workers that fetch", "fetch 2", NETWORK, servers="http"),
    _lightning("DDP, one with a slow worker", "burn 1 ddp", f"{PEER};{WORKER_CPU}", single=False),
    _lightning("healthy", "quick 1", "busy"),
)


def _streaming(
    name: str, loop: str, expected: str, *, servers: str = "", limits: Limits | None = None
) -> Case:
    return _case(
        "streaming",
        name,
        f"streaming {loop}",
        expected,
        venv="streaming",
        servers=servers,
        limits=limits,
    )


STREAMING = (
    _streaming("WebDataset, no worker", "web 0", HOST_CODE),
    _streaming("WebDataset, 1 worker", "web 1", WORKER_CPU),
    _streaming("WebDataset, pipe:curl", "web-curl 0", NETWORK, servers="http"),
    _streaming("WebDataset, pipe:curl in a worker", "web-curl 1", NETWORK, servers="http"),
    _streaming("WebDataset, pipe:dd of a cold file", "web-dd 0", STORAGE, limits=SLOW_DISK),
    _streaming("healthy: WebDataset, 1 worker", "web-quick 1", "busy"),
    _streaming("datasets, a table, no worker", "hub 0", HOST_CODE),
    _streaming("datasets, a table, 1 worker", "hub 1", WORKER_CPU),
    _streaming("datasets, streamed, 1 worker", "hub-stream 1", WORKER_CPU),
    _streaming("datasets, streamed over HTTP", "hub-remote 0", NETWORK, servers="http"),
    _streaming("datasets, streamed over HTTP, 1 worker", "hub-remote 1", NETWORK, servers="http"),
    _streaming("healthy: datasets, streamed, 1 worker", "hub-quick 1", "busy"),
    _streaming("Mosaic, 1 worker", "mosaic 1", WORKER_CPU),
    _streaming("Mosaic, from S3, 1 worker", "mosaic-remote 1", NETWORK, servers="s3"),
    _streaming("healthy: Mosaic, 1 worker", "mosaic-quick 1", "busy"),
    _streaming("litdata, 1 worker", "lit 1", WORKER_CPU),
    _streaming("litdata, from S3, 1 worker", "lit-remote 1", NETWORK, servers="s3"),
    _streaming("healthy: litdata, 1 worker", "lit-quick 1", "busy"),
)


def _ray(name: str, loop: str, expected: str, *, servers: str = "", note: str = "") -> Case:
    return _case(
        "Ray",
        name,
        f"raying {loop}",
        expected,
        venv="ray",
        servers=servers,
        single=False,
        note=note,
    )


RAY = (
    _ray("Ray Data, map_batches in Python", "data", WORKER_CPU),
    _ray("Ray Data, map_batches that fetches", "data-fetch", NETWORK, servers="http"),
    _ray("a driver fed by tasks", "driver", WORKER_CPU),
    _ray("an actor fed by tasks", "tasks", WORKER_CPU),
    _ray("an actor fed by another", "actor", WORKER_CPU),
    _ray("an actor fed by another that fetches", "actor-fetch", NETWORK, servers="http"),
    _ray("an actor fed by tasks that fetch", "tasks-fetch", NETWORK, servers="http"),
    _ray("an actor's own code", "self", HOST_CODE),
    _ray("an idle actor", "idle", _NO_JOB, note="it waits for somebody to call it"),
    _ray("healthy: Ray Data", "data-quick", "busy"),
    _ray("healthy: an actor fed by another", "healthy", "busy"),
)


def _tensorflow(  # noqa: PLR0913 - a table
    name: str,
    loop: str,
    expected: str,
    *,
    servers: str = "",
    limits: Limits | None = None,
    note: str = "",
) -> Case:
    return _case(
        "tf.data",
        name,
        f"tensors {loop}",
        expected,
        venv="tensorflow",
        servers=servers,
        limits=limits,
        note=note,
    )


TENSORFLOW = (
    _tensorflow("map, a function in Python", "python", WORKER_CPU),
    _tensorflow("map, a function in Python, prefetched", "ahead", WORKER_CPU),
    _tensorflow("map, pictures decoded", "native", WORKER_CPU),
    _tensorflow("map, pictures decoded, prefetched", "native-ahead", WORKER_CPU),
    _tensorflow("a generator that fetches", "generator", NETWORK, servers="http"),
    _tensorflow("interleave, cold files", "records", STORAGE, limits=SLOW_DISK),
    _tensorflow("records of a FUSE file system", "mounted", STORAGE, servers="fuse-direct"),
    _tensorflow("healthy: prefetched", "healthy", "busy"),
)


def _grain(name: str, loop: str, expected: str, *, servers: str = "") -> Case:
    return _case("grain and JAX", name, f"grained {loop}", expected, venv="jax", servers=servers)


GRAIN = (
    _grain("grain, a thread", "threads", WORKER_CPU),
    _grain("grain, a thread that fetches", "threads-fetch", NETWORK, servers="http"),
    _grain("grain, no thread", "inline", HOST_CODE),
    _grain("grain, a process", "processes", WORKER_CPU),
    _grain("grain, a process that fetches", "processes-fetch", NETWORK, servers="http"),
    _grain("JAX, Python between steps", "jax", HOST_CODE),
    _grain("healthy: grain, a process", "healthy", "busy"),
)

CASES: tuple[Case, ...] = (
    *(_case("strangers", *row[:3], servers=row[3], single=False) for row in STRANGERS),
    *HTTP,
    *OBJECT_STORAGE,
    *SERVING,
    *WAITS,
    *map(_service, SERVICES),
    *ASLEEP_CASES,
    *THREADS,
    *FILES,
    *BESIDE,
    *RANKS,
    *DATA_LOADER,
    *COLLECTIVES,
    *LIGHTNING,
    *STREAMING,
    *RAY,
    *TENSORFLOW,
    *GRAIN,
)
