"""The command line: each command, what it accepts, and what carries it out."""

from __future__ import annotations

import functools
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.flags import (
    REPORTING,
    SAMPLING,
    SERVING,
    WEB,
    WEB_CONFIG,
    Decorator,
    as_json,
    flag,
    settings_flags,
)
from gpu_bottleneck_exporter.helptext import PROGRAM, Group
from gpu_bottleneck_exporter.pod import in_a_pod
from gpu_bottleneck_exporter.settings import Settings

_ENDING = (signal.SIGTERM, signal.SIGINT)
_output = partial(flag, section="Output")
_WRONG_OPTION = {2: "an option or a setting is wrong"}


@click.group(
    cls=Group,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples={
        "check": "What works here, what is missing and how to fix it:",
        "serve": "Serve metrics on http://localhost:10170/metrics:",
        "check --diagnose 60": "Why the GPUs of this machine are idle, without Prometheus:",
        "demo --alerts": "Try it without a GPU:",
    },
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def commands() -> None:
    """Prometheus exporter that reports why a GPU is idle.

    It counts how long each GPU is busy, charges the idle time to what the processes that feed the
    GPU wait for, and serves both as metrics. Each command has its own --help.
    """


@commands.command(
    examples={
        "serve": "Serve on port 10170 of all addresses:",
        "serve --web.listen-address 127.0.0.1:9400 --log.format json": "Local clients only:",
        "serve --web.config.file /etc/gpu-exporter/web.yml": "With TLS and passwords:",
        "serve --without=kubelet,host_pids --no-collector.link": "With fewer rights:",
    },
    exit_status={
        0: "ended by SIGTERM or SIGINT",
        1: "cannot serve: the address is in use, or a part of the exporter has failed",
        **_WRONG_OPTION,
    },
)
@settings_flags(WEB, WEB_CONFIG, SAMPLING, SERVING)
def serve(settings: Settings) -> None:
    """Serve this machine's GPU metrics to Prometheus.

    Serves /metrics, a status page at / and the probes /-/healthy and /-/ready. Without a driver
    it serves what is available, reports what is missing and keeps trying.
    """
    from gpu_bottleneck_exporter.commands.serve import serve as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.listen import bind  # noqa: PLC0415

    web_config = _web_config(settings)
    listening = bind(settings.listen_address)
    click.echo(f"serving on {_url(listening, settings, web_config)}", err=True)
    run(settings, _driver(settings), listening, web_config)


@commands.command(
    examples={
        "check": "Check drivers, GPUs, signals and permissions:",
        "check --diagnose 30": "Watch for 30 s, then report the likely cause per GPU:",
        "check --json | jq -r '.gaps[] | .subject + \": \" + .remedy'": "List remedies:",
    },
    exit_status={
        0: "everything is available",
        1: "works, with gaps",
        2: "no GPU metrics, or an option is wrong",
    },
)
@_output(
    "diagnose",
    "seconds",
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="Watch for this long, then report for each GPU how busy it was, what it waited for, "
    "what to try first and, from about 30 s on, what which change would bring.",
)
@as_json
@settings_flags(WEB_CONFIG, SAMPLING, REPORTING)
def check(settings: Settings, seconds: float | None, *, as_json: bool) -> None:
    """Report what works, what is missing and how to fix it.

    Give it the options and variables of the exporter that you check. With --diagnose it reports
    why each GPU is idle instead, and ends with status 0 if any GPU is up.
    """
    from gpu_bottleneck_exporter.commands.check import check as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.commands.diagnose import diagnose  # noqa: PLC0415
    from gpu_bottleneck_exporter.jsontext import dumps  # noqa: PLC0415

    web_config = _web_config(settings)
    summary = web_config.active.config.summary if web_config else None
    if summary and not as_json:
        click.echo(f"web config      OK: {settings.web_config_file}: {summary}")
    if seconds is None:
        report = run(settings, _driver(settings))
    else:
        report = diagnose(settings, _driver(settings), seconds, _progress)
        _progress(0)
    lines = (dumps({**report.document, "web_config": summary}),) if as_json else report.lines
    for line in lines:
        click.echo(line)
    sys.exit(report.status)


_node = partial(flag, section="Node")


@commands.command(
    examples={
        "top": "Watch this machine:",
        "top --url http://node7:10170": "Watch another one:",
        "top --once --json | jq '.gpus[] | {gpu, busy_ratio, cause}'": "For a script:",
    },
    exit_status={
        0: "ended by q or a signal, or after --count readings",
        1: "the last reading failed, or there is no GPU",
        **_WRONG_OPTION,
    },
)
@_node(
    "url",
    metavar="URL",
    help="Watch the exporter at this URL, such as https://user:password@node7:10170.",
)
@_node(
    "ca-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CA certificates to trust with --url, instead of the system's.",
)
@_output(
    "interval",
    "seconds",
    type=click.FloatRange(0.5, 60),
    default=2.0,
    metavar="SECONDS",
    help="Time between two readings, 0.5 to 60.",
)
@_output(
    "count",
    "-n",
    type=click.IntRange(1),
    metavar="N",
    help="Print plain lines N times, then end. Without it, and without a terminal, it prints until "
    "it is stopped.",
)
@_output("once", "once_only", is_flag=True, help="The same as --count 1.")
@_output(
    "sort",
    "order",
    type=click.Choice(["gpu", "busy", "watts", "temperature", "memory", "cause"]),
    default="gpu",
    help="Initial sort order of the live view.",
)
@as_json
@settings_flags(SAMPLING, REPORTING)
def top(  # noqa: PLR0913 - one for each option
    settings: Settings,
    url: str | None,
    ca_file: Path | None,
    seconds: float,
    count: int | None,
    *,
    once_only: bool,
    order: str,
    as_json: bool,
) -> None:
    """Show live what each GPU does and waits for.

    Shows this machine, or another one with --url, and for the selected GPU what to try first.
    Press ? for the keys, q to quit.
    """
    from gpu_bottleneck_exporter.top.run import top as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.top.source import Local, Remote  # noqa: PLC0415

    source = Remote(url, ca_file) if url else Local(settings, _driver(settings), seconds)
    run(source, seconds, 1 if once_only else count, order, as_json=as_json)


@commands.command(
    examples={
        "once | grep gpu_power_watts": "The power of each GPU:",
        "once --json | jq '.gpus[] | {gpu, busy_ratio, cause}'": "What each GPU did meanwhile:",
    },
    exit_status={0: "metrics printed", 1: "no GPU metrics", **_WRONG_OPTION},
)
@as_json
@settings_flags(SAMPLING, REPORTING)
def once(settings: Settings, *, as_json: bool) -> None:
    """Print the metrics once.

    Samples for two ticks, then prints what a scrape would return. Counters start at zero. With
    --json it prints what each GPU did in two ticks, like /api/v1/node.
    """
    from gpu_bottleneck_exporter.commands import once as output  # noqa: PLC0415

    made = output.node if as_json else output.metrics
    text, trouble = made(settings, _driver(settings))
    click.echo(text, nl=False)
    if trouble:
        raise ExporterError(f"no GPU metrics: {trouble}")


@commands.command(
    examples={
        "demo": "Simulated GPUs on http://localhost:10170:",
        "demo --alerts": "With Prometheus and Alertmanager, if they are installed:",
    },
    exit_status={
        0: "ended by SIGTERM or SIGINT",
        1: "cannot serve, or a part of the demo has failed",
        **_WRONG_OPTION,
    },
)
@flag(
    "alerts",
    is_flag=True,
    help="Also run Prometheus and Alertmanager with the rule pack, and print alerts here.",
)
@settings_flags(WEB, WEB_CONFIG, SAMPLING, SERVING)
def demo(settings: Settings, *, alerts: bool) -> None:
    """Serve simulated GPUs: the exporter without a GPU.

    Small training loops, real processes, feed the simulated GPUs, each with another bottleneck.
    """
    from gpu_bottleneck_exporter.commands.serve import serve as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.demo.alerts import alerting  # noqa: PLC0415
    from gpu_bottleneck_exporter.demo.run import running  # noqa: PLC0415
    from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.listen import bind  # noqa: PLC0415

    if alerts and settings.web_config_file:
        raise SettingsError("--alerts scrapes without TLS and users: omit --web.config.file")
    web_config = _web_config(settings)
    listening = bind(settings.listen_address)
    with running() as demo_board:
        click.echo(demo_board.banner, err=True)
        click.echo(f"serving on {_url(listening, settings, web_config)}", err=True)
        with ExitStack() as beside:
            if alerts:
                port = listening.getsockname()[1]
                tell = partial(click.echo, err=True)
                beside.enter_context(alerting(f"127.0.0.1:{port}", tell))
            board = demo_board.board
            run(settings, lambda: VirtualDriver(board), listening, web_config, at_a_terminal=True)


def _writing(text: str) -> Decorator:
    """`--output`, with `text` as its help, and `--force`."""
    file = partial(flag, section="Files")
    folder = click.Path(file_okay=False, path_type=Path)
    output = file("output", "folder", type=folder, metavar="DIR", help=text)
    force = file("force", is_flag=True, help="Let --output overwrite files that differ.")
    return lambda command: output(force(command))


_content = partial(flag, section="Content")
_object = partial(flag, section="Prometheus Operator")
_WRITING: Mapping[int, str] = {
    0: "printed or written",
    1: "a value cannot be used, or a file cannot be written or differs and --force is missing",
    **_WRONG_OPTION,
}


@commands.command(
    examples={
        "rules --output /etc/prometheus/rules": "Write the rule files for Prometheus:",
        "rules --prometheusrule --namespace monitoring | kubectl apply -f -": "Install as object:",
        "rules --for-scale 60": "Try alerts out in seconds instead of minutes:",
    },
    exit_status=_WRITING,
)
@_writing("Write one file per group to this directory instead of printing one file.")
@_content(
    "dialect",
    type=click.Choice(["exporter", "dcgm", "both"]),
    default="exporter",
    help="Whose metrics the rules read: this exporter's, dcgm-exporter's, or both side by side.",
)
@_content(
    "for-scale",
    "scale",
    type=float,
    default=1.0,
    metavar="N",
    help="To try alerts out: divide all durations, windows and intervals by N. Scrape N times as "
    "often.",
)
@_content(
    "no-keep-firing-for",
    "without_keep_firing",
    is_flag=True,
    help="Omit keep_firing_for, for Prometheus before 2.42 and older vmalert.",
)
@_content(
    "no-prescriptions",
    "without_prescriptions",
    is_flag=True,
    help="Omit prescriptions from descriptions, for vmalert -replay, which cannot look them up.",
)
@_content("runbook-base", metavar="URL", help="Base URL of the runbooks that alerts link to.")
@_content(
    "grafana-url", metavar="URL", help="URL of Grafana, for alerts to link to its dashboards."
)
@_content(
    "workload-namespace",
    is_flag=True,
    help="Set the label namespace of alerts about a job to the namespace of its pod, as "
    "AlertmanagerConfig objects and kube-prometheus-stack's inhibition rules expect.",
)
@_object(
    "prometheusrule",
    is_flag=True,
    help="Print one PrometheusRule object of the Prometheus Operator.",
)
@_object("name", help="Name of the object; gpu-bottleneck-exporter if omitted.")
@_object("namespace", help="Namespace of the object.")
@_object("label", "labels", multiple=True, metavar="K=V", help="Label of the object; repeatable.")
def rules(folder: Path | None, *, force: bool, **wanted: Any) -> None:
    """Print or write the recording and alerting rules.

    Prints all groups as one file, or writes a file per group with --output.
    """
    from gpu_bottleneck_exporter.commands import rules as output  # noqa: PLC0415

    choice = output.Wanted(**wanted)
    if folder is None:
        click.echo(output.printed(choice), nl=False)
        return
    for path in output.write(folder, output.rendered(choice), force=force):
        click.echo(f"wrote {path}", err=True)


def _dashboard_names(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    from gpu_bottleneck_exporter.commands.dashboards import names  # noqa: PLC0415

    return [name for name in names() if name.startswith(typed)]


@commands.command(
    examples={
        "dashboards": "List the dashboards:",
        "dashboards --output /var/lib/grafana/dashboards": "Write all of them:",
    },
    exit_status=_WRITING,
)
@click.argument("name", required=False, shell_complete=_dashboard_names)
@_writing("Write all dashboards to this directory.")
def dashboards(name: str | None, folder: Path | None, *, force: bool) -> None:
    """List, print or write the Grafana dashboards.

    Lists their names, prints the one NAME, or writes all with --output.
    """
    from gpu_bottleneck_exporter.commands import dashboards as output  # noqa: PLC0415
    from gpu_bottleneck_exporter.commands.rules import write  # noqa: PLC0415

    if folder is not None:
        if name is not None:
            raise ExporterError("--output writes all dashboards: omit the name")
        for path in write(folder, output.files(), force=force):
            click.echo(f"wrote {path}", err=True)
    elif name is not None:
        click.echo(output.printed(name), nl=False)
    else:
        click.echo("\n".join(output.names()))


def _progress(seconds_left: float) -> None:
    """A line that is written over; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        text = f"watching, {seconds_left:.0f} s left" if seconds_left else ""
        click.echo(f"\r{text:30}" + ("" if seconds_left else "\r"), err=True, nl=False)


def _driver(settings: Settings) -> Callable[[], Any]:
    from gpu_bottleneck_exporter.driver.open import open_driver  # noqa: PLC0415

    return functools.partial(open_driver, settings.sysfs, wake_suspended=settings.wake_suspended)


def _web_config(settings: Settings) -> Any:
    from gpu_bottleneck_exporter.web.reload import WebConfigFile  # noqa: PLC0415

    return WebConfigFile(Path(settings.web_config_file)) if settings.web_config_file else None


def _url(listening: Any, settings: Settings, web_config: Any) -> str:
    scheme = "https" if web_config and web_config.active.tls else "http"
    host, port = listening.getsockname()[:2]
    if host in ("::", "0.0.0.0"):  # noqa: S104 - compared, not bound
        # A pod's log is read elsewhere; the pod's name is its host's.
        host = socket.gethostname() if in_a_pod() else "localhost"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.telemetry_path}"


def main() -> NoReturn:
    """Entry point: errors that a user can put right are one line on stderr."""
    # Until something better takes them over: a signal at any moment is a clean end.
    for number in _ENDING:
        signal.signal(number, _end_once)
    try:
        commands.main(prog_name=PROGRAM, standalone_mode=False)
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
    click.echo(f"{PROGRAM}: {sentence}", err=True)
    sys.exit(status)
