"""The command line."""

from __future__ import annotations

import functools
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.log import FORMATS, LEVELS, configure
from gpu_bottleneck_exporter.pod import in_a_pod
from gpu_bottleneck_exporter.remedies import RUNBOOK_BASE
from gpu_bottleneck_exporter.settings import (
    CONTAINER_LOGS,
    KUBELET_SOCKET,
    LONGEST_ANSWER_SECONDS,
    Settings,
)

_NAME = "gpu-bottleneck-exporter"
_ENDING = (signal.SIGTERM, signal.SIGINT)
ENVIRONMENT_PREFIX = "GPU_EXPORTER_"
Command = Callable[..., None]


def flag(name: str, field: str, **attributes: Any) -> Callable[[Command], Command]:
    """An option in Prometheus' style, also taken from the environment."""
    variable = ENVIRONMENT_PREFIX + name.replace(".", "_").replace("-", "_").upper()
    return click.option(
        f"--{name}", field, envvar=variable, show_envvar=True, show_default=True, **attributes
    )


def _words(value: str | frozenset[str]) -> frozenset[str]:
    """Words with commas between them."""
    return value if isinstance(value, frozenset) else frozenset(value.replace(",", " ").split())


def collector_flags(command: Command) -> Command:
    """`--collector.X/--no-collector.X` for each collector."""
    for collector in reversed(ALL):
        command = click.option(
            f"--collector.{collector.name}/--no-collector.{collector.name}",
            f"collector_{collector.name}",
            envvar=f"{ENVIRONMENT_PREFIX}COLLECTOR_{collector.name.upper()}",
            show_envvar=True,
            default=True,
            show_default=True,
            help=f"The {collector.name} collector.",
        )(command)
    return command


_SAMPLING = (
    flag(
        "sampling.interval",
        "interval_seconds",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="Time between two readings of a GPU, 0.2 to 5.",
    ),
    flag(
        "sampling.deadline",
        "deadline_seconds",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="A GPU that does not answer for so long is reported down.",
    ),
    flag(
        "stall.longest-answer",
        "longest_answer_seconds",
        type=float,
        default=LONGEST_ANSWER_SECONDS,
        metavar="SECONDS",
        help="A feeder that asked another machine longer ago than this does not wait for a slow "
        "answer, but for news or for a dead peer.",
    ),
    flag(
        "path.procfs",
        "procfs",
        type=click.Path(path_type=Path),
        default="/proc",
        help="Where the host's procfs is mounted.",
    ),
    flag(
        "path.sysfs",
        "sysfs",
        type=click.Path(path_type=Path),
        default="/sys",
        help="Where the host's sysfs is mounted.",
    ),
    flag(
        "driver.wake-suspended",
        "wake_suspended",
        is_flag=True,
        help="Read GPUs that runtime power management has put to sleep, and keep them awake.",
    ),
    flag(
        "kubelet.socket",
        "kubelet_socket",
        # Without the right to read it `check` is to say so, and the rest is to work.
        type=click.Path(readable=False, path_type=Path),
        default=KUBELET_SOCKET,
        help="Where the kubelet's pod-resources socket is mounted; without it, pods that have not "
        "opened their GPU are not seen.",
    ),
    flag(
        "without",
        "without",
        # One word, as environment variables have no lists.
        type=_words,
        default="",
        metavar="SIGNAL,...",
        help="Signals that nobody wants here, such as host_pids,kubelet: they are no gap, and "
        "gpu_exporter_signal_available does not tell of them.",
    ),
    flag(
        "kubelet.container-logs",
        "container_logs",
        type=click.Path(readable=False, path_type=Path),
        default=CONTAINER_LOGS,
        help="Where the host's /var/log/containers is mounted, for the names of its files.",
    ),
)


def _log(level: str) -> tuple[Callable[[Command], Command], ...]:
    return (
        flag(
            "log.level",
            "log_level",
            type=click.Choice(LEVELS),
            default=level,
            help="Lowest level to log.",
        ),
        flag(
            "log.format",
            "log_format",
            type=click.Choice(FORMATS),
            default="logfmt",
            help="Log format.",
        ),
    )


_SERVING = _log("info")
_REPORTING = _log("error")
_WEB_CONFIG = (
    flag(
        "web.config.file",
        "web_config_file",
        default="",
        metavar="FILE",
        help="TLS and users, in the format of Prometheus' exporter-toolkit.",
    ),
)
_WEB = (
    flag(
        "web.listen-address",
        "listen_address",
        default=":10170",
        metavar="ADDRESS",
        help="Address to listen on: :10170, 127.0.0.1:10170 or [::1]:10170.",
    ),
    flag(
        "web.telemetry-path",
        "telemetry_path",
        default="/metrics",
        metavar="PATH",
        help="Path under which metrics are served.",
    ),
    flag(
        "web.runbook-base",
        "runbook_base",
        default=RUNBOOK_BASE,
        metavar="URL",
        help="Where your copy of the runbooks is, for the status page to link there.",
    ),
)


def settings_flags(
    *groups: Sequence[Callable[[Command], Command]],
) -> Callable[[Callable[..., None]], Command]:
    """Options that become a `Settings`, which the command gets as its first argument."""

    def decorate(function: Callable[..., None]) -> Command:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            others = {name: values.pop(name) for name in _own_parameters(function, values)}
            configure(values.pop("log_level"), values.pop("log_format"))
            disabled = frozenset(
                name for c in ALL if not values.pop(f"collector_{(name := c.name)}")
            )
            function(Settings(disabled_collectors=disabled, **values), **others)

        wrapped: Command = collector_flags(command)
        for option in reversed([option for group in groups for option in group]):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _own_parameters(function: Callable[..., None], values: dict[str, Any]) -> list[str]:
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names if name in values]


@click.group(
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def commands() -> None:
    """Prometheus exporter that says why a GPU is idle."""


@commands.command()
@settings_flags(_WEB, _WEB_CONFIG, _SAMPLING, _SERVING)
def serve(settings: Settings) -> None:
    """Serve the metrics of this machine's GPUs.

    Without a driver it serves what there is, says what is missing, and keeps trying.
    """
    from gpu_bottleneck_exporter.serve import serve as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.listen import bind  # noqa: PLC0415

    web_config = _web_config(settings)
    sockets = bind(settings.listen_address)
    click.echo(f"serving on {_url(sockets[0], settings, web_config)}", err=True)
    run(settings, _nvml(settings), sockets, web_config)


@commands.command()
@click.option(
    "--alerts",
    is_flag=True,
    envvar=f"{ENVIRONMENT_PREFIX}ALERTS",
    show_envvar=True,
    help="Run Prometheus and Alertmanager with the rules beside it, and show alerts here.",
)
@settings_flags(_WEB, _WEB_CONFIG, _SAMPLING, _SERVING)
def demo(settings: Settings, *, alerts: bool) -> None:
    """Serve simulated GPUs that real little training loops keep busy, each in its own way."""
    from gpu_bottleneck_exporter.demo.alerts import alerting  # noqa: PLC0415
    from gpu_bottleneck_exporter.demo.run import running  # noqa: PLC0415
    from gpu_bottleneck_exporter.driver.virtual import VirtualDriver  # noqa: PLC0415
    from gpu_bottleneck_exporter.serve import serve as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.listen import bind  # noqa: PLC0415

    if alerts and settings.web_config_file:
        raise SettingsError("--alerts scrapes without TLS and users: leave --web.config.file out")
    web_config = _web_config(settings)
    sockets = bind(settings.listen_address)
    with running() as demo_board:
        click.echo(demo_board.banner, err=True)
        click.echo(f"serving on {_url(sockets[0], settings, web_config)}", err=True)
        with ExitStack() as beside:
            if alerts:
                port = sockets[0].getsockname()[1]
                tell = partial(click.echo, err=True)
                beside.enter_context(alerting(f"127.0.0.1:{port}", tell))
            board = demo_board.board
            run(settings, lambda: VirtualDriver(board), sockets, web_config, at_a_terminal=True)


@commands.command()
@settings_flags(_SAMPLING, _REPORTING)
def once(settings: Settings) -> None:
    """Sample for two ticks and print one exposition to stdout."""
    from gpu_bottleneck_exporter.check import sampled  # noqa: PLC0415
    from gpu_bottleneck_exporter.exposition import Exposition  # noqa: PLC0415
    from gpu_bottleneck_exporter.serve import enabled_collectors  # noqa: PLC0415

    sampler = sampled(settings, _nvml(settings), ticks=2)
    body, _ = Exposition(sampler, enabled_collectors(settings)).render()
    found = bool(sampler.state().gpus)
    status = sampler.status
    sampler.stop()
    click.echo(body.decode(), nl=False)
    if not found:
        raise ExporterError(f"no GPU metrics: {status}")


@commands.command()
@click.option(
    "--diagnose",
    "seconds",
    type=click.FloatRange(1, 3600),
    envvar=f"{ENVIRONMENT_PREFIX}DIAGNOSE",
    show_envvar=True,
    metavar="SECONDS",
    help="Watch for so long, then say per GPU how busy it was, what it waited on, and what to try.",
)
@settings_flags(_WEB_CONFIG, _SAMPLING, _REPORTING)
def check(settings: Settings, seconds: float | None) -> None:
    """Tell what was found, each gap with its remedy.

    Exit status 0: everything is available; 1: works, with gaps; 2: no GPU metrics.
    """
    from gpu_bottleneck_exporter.check import check as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.diagnose import diagnose  # noqa: PLC0415

    web_config = _web_config(settings)
    if web_config is not None:
        summary = web_config.active.config.summary
        click.echo(f"web config      OK: {settings.web_config_file}: {summary}")
    if seconds is None:
        report = run(settings, _nvml(settings))
    else:
        report = diagnose(settings, _nvml(settings), seconds, _progress)
        _progress(0)
    for line in report.lines:
        click.echo(line)
    sys.exit(report.status)


@commands.command()
@flag(
    "url",
    "url",
    metavar="URL",
    help="Watch the exporter there instead, as in https://user:password@node7:10170/metrics.",
)
@flag(
    "ca-file",
    "ca_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Certificates of the authorities to trust with --url, instead of the system's.",
)
@flag(
    "interval",
    "seconds",
    type=click.FloatRange(0.5, 60),
    default=2.0,
    metavar="SECONDS",
    help="Time between two looks, 0.5 to 60.",
)
@click.option(
    "--count",
    "-n",
    "count",
    type=click.IntRange(1),
    envvar=f"{ENVIRONMENT_PREFIX}COUNT",
    show_envvar=True,
    metavar="N",
    help="Print plain lines N times and end; so it does without end where stdout is no terminal.",
)
@flag("once", "once_only", is_flag=True, help="The same as --count 1.")
@flag(
    "sort",
    "order",
    type=click.Choice(["gpu", "busy", "watts", "temperature", "memory", "cause"]),
    default="gpu",
    help="What to sort by at first.",
)
@settings_flags(_SAMPLING, _REPORTING)
def top(  # noqa: PLR0913 - one for each option
    settings: Settings,
    url: str | None,
    ca_file: Path | None,
    seconds: float,
    count: int | None,
    *,
    once_only: bool,
    order: str,
) -> None:
    """Show a node live: what each GPU does, what it waits for, and what to try.

    This machine's GPUs without --url. Keys: ? tells them, q quits.
    """
    from gpu_bottleneck_exporter.top.run import top as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.top.source import Local, Remote  # noqa: PLC0415

    source = Remote(url, ca_file) if url else Local(settings, _nvml(settings))
    run(source, seconds, 1 if once_only else count, order)


@commands.command()
@flag(
    "output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the files there instead of printing one with all groups.",
)
@flag("force", "force", is_flag=True, help="Let --output overwrite files that differ.")
@flag(
    "dialect",
    "dialect",
    type=click.Choice(["exporter", "dcgm", "both"]),
    default="exporter",
    help="Whose metrics the rules read: this exporter's, dcgm-exporter's, or both side by side.",
)
@flag(
    "for-scale",
    "scale",
    type=float,
    default=1.0,
    metavar="N",
    help="For try-outs: divide every duration by N, windows and intervals included. Scrape so much "
    "more often.",
)
@flag(
    "no-keep-firing-for",
    "without_keep_firing",
    is_flag=True,
    help="Leave keep_firing_for out: for Prometheus before 2.42 and older vmalert.",
)
@flag(
    "runbook-base",
    "runbook_base",
    metavar="URL",
    help="Where your copy of the runbooks is, for the alerts to link there.",
)
@flag(
    "grafana-url",
    "grafana_url",
    metavar="URL",
    help="Where Grafana is, for the alerts to link to its dashboards.",
)
@flag(
    "workload-namespace",
    "workload_namespace",
    is_flag=True,
    help="Give alerts about a job the namespace of its pod as their label namespace, as "
    "AlertmanagerConfig objects and kube-prometheus-stack's inhibition rules expect it.",
)
@flag(
    "prometheusrule",
    "prometheusrule",
    is_flag=True,
    help="As one PrometheusRule object of the Prometheus Operator.",
)
@flag("name", "name", help="The object's name; gpu-bottleneck-exporter if not given.")
@flag("namespace", "namespace", help="The object's namespace.")
@flag("label", "labels", multiple=True, metavar="K=V", help="A label of the object; repeatable.")
def rules(folder: Path | None, *, force: bool, **wanted: Any) -> None:
    """Print the recording and alerting rules as one file, or write them to a folder."""
    from gpu_bottleneck_exporter import ruleoutput  # noqa: PLC0415

    choice = ruleoutput.Wanted(**wanted)
    if folder is None:
        click.echo(ruleoutput.printed(choice), nl=False)
        return
    for path in ruleoutput.write(folder, ruleoutput.rendered(choice), force=force):
        click.echo(f"wrote {path}", err=True)


@commands.command()
@click.argument("name", required=False)
@flag(
    "output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write all of them there.",
)
@flag("force", "force", is_flag=True, help="Let --output overwrite files that differ.")
def dashboards(name: str | None, folder: Path | None, *, force: bool) -> None:
    """List the Grafana dashboards, print the one named, or write all to a folder."""
    from gpu_bottleneck_exporter import dashboardoutput, ruleoutput  # noqa: PLC0415

    if folder is not None:
        if name is not None:
            raise ExporterError("--output writes all dashboards: name none")
        for path in ruleoutput.write(folder, dashboardoutput.files(), force=force):
            click.echo(f"wrote {path}", err=True)
    elif name is not None:
        click.echo(dashboardoutput.printed(name), nl=False)
    else:
        click.echo("\n".join(dashboardoutput.names()))


def _progress(seconds_left: float) -> None:
    """A line that is written over; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        text = f"watching, {seconds_left:.0f} s left" if seconds_left else ""
        click.echo(f"\r{text:30}" + ("" if seconds_left else "\r"), err=True, nl=False)


def _nvml(settings: Settings) -> Callable[[], Any]:
    from gpu_bottleneck_exporter.driver.open import open_nvml  # noqa: PLC0415

    return functools.partial(open_nvml, settings.sysfs, wake_suspended=settings.wake_suspended)


def _web_config(settings: Settings) -> Any:
    from gpu_bottleneck_exporter.web.reload import WebConfigFile  # noqa: PLC0415

    return WebConfigFile(Path(settings.web_config_file)) if settings.web_config_file else None


def _url(listening: Any, settings: Settings, web_config: Any) -> str:
    scheme = "https" if web_config and web_config.active.tls else "http"
    host, port = listening.getsockname()[:2]
    if host in ("::", "0.0.0.0"):  # noqa: S104 - compared, not bound
        # Whoever reads a pod's log is somewhere else; the pod's name is its host's.
        host = socket.gethostname() if in_a_pod() else "localhost"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.telemetry_path}"


def main() -> NoReturn:
    """Entry point: errors that a user can put right are one line on stderr."""
    # Until something better takes them over: a signal at any moment is a clean end.
    for number in _ENDING:
        signal.signal(number, _end_once)
    try:
        commands.main(prog_name=_NAME, standalone_mode=False)
    except ExporterError as error:
        _end(str(error), error.status)
    except click.ClickException as error:
        _end(error.format_message(), error.exit_code)
    finally:
        # The interpreter puts handlers back to "kill" before it ends; this one it leaves.
        _ignore_signals()
    sys.exit(0)


def _end_once(*_: object) -> NoReturn:
    _ignore_signals()  # a second one would end the cleaning up
    sys.exit(0)


def _ignore_signals() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def _end(sentence: str, status: int = 1) -> NoReturn:
    click.echo(f"{_NAME}: {sentence}", err=True)
    sys.exit(status)
