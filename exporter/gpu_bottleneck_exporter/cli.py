"""The commands and their options.

Implementations are imported on use, as no command needs those of the others.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.flags import (
    PROGRAM,
    Amount,
    Group,
    Seconds,
    as_json,
    flag,
    settings_flags,
    url_of,
)
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.shipped import completion, dashboards, rules, runbook

_duration = Seconds(1, 3600)
_settings = partial(settings_flags, {collector.name: collector.on for collector in ALL})
_stacks = flag(
    "stacks", is_flag=True, help="Also name the lines of Python code that the GPUs wait for."
)
_ca_file = flag(
    "ca-file FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CA certificates to trust at URLs, instead of the system's.",
)


@click.group(
    cls=Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Prometheus exporter that reports why a GPU is idle.

    It measures the busy time of each GPU, attributes the idle time to the waits of the processes
    that feed it, and serves both as metrics. Each command has its own --help. The environment
    variable next to a setting also sets it; an option on the command line takes precedence.
    Times in seconds can be written as 90, 90s or 1m30s.

    \b
    List available and missing signals, with remedies:
      $ gpu-bottleneck-exporter check
    Serve metrics on http://localhost:10170/metrics:
      $ gpu-bottleneck-exporter serve
    Why the GPUs of this machine are idle, without Prometheus:
      $ gpu-bottleneck-exporter diagnose
    Try it without a GPU:
      $ gpu-bottleneck-exporter demo --alerts

    \b
    Exit status of all commands:
      0  success
      1  failure, or problems found
      2  a command, an option, a setting or a name is wrong
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@commands.command
@_settings(web="web.", log_level="info")
def serve(settings: Settings) -> None:
    """Serve this machine's GPU metrics to Prometheus.

    Serves /metrics, a status page at / and the probes /-/healthy and /-/ready. Without a driver
    it serves the available metrics, reports the missing ones and retries.

    \b
    Serve on port 10170 of all addresses:
      $ gpu-bottleneck-exporter serve
    Local clients only:
      $ gpu-bottleneck-exporter serve --web.listen-address 127.0.0.1:9400 --log.format json
    With TLS and passwords:
      $ gpu-bottleneck-exporter serve --web.config.file /etc/gpu-exporter/web.yml
    With fewer privileges:
      $ gpu-bottleneck-exporter serve --without=kubelet,host_pids --no-collector.link

    \b
    Exit status:
      0  ended by SIGTERM or SIGINT
      1  cannot serve: the address is in use, or a part of the exporter has failed
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands import serve as serving  # noqa: PLC0415

    serving.serve(settings, _driver(settings), *serving.listening(settings))
    serving.leave()


@commands.command
@flag(
    "diagnose SECONDS",
    "seconds",
    type=_duration,
    help="The same as the command diagnose.",
)
@_stacks
@flag("verbose", "-v", is_flag=True, help="Also list the driver, the signals and the GPUs.")
@as_json
@_settings(web="web.config.file")
def check(
    settings: Settings, seconds: float | None, *, stacks: bool, verbose: bool, as_json: bool
) -> None:
    """Report available and missing signals, with remedies.

    Use the same options and variables as the exporter.

    \b
    Check drivers, GPUs, signals and permissions:
      $ gpu-bottleneck-exporter check
    As the service would run:
      $ gpu-bottleneck-exporter check --without kubelet --web.config.file /etc/gpu-exporter/web.yml
    List remedies:
      $ gpu-bottleneck-exporter check --json | jq -r '.gaps[] | .subject + ": " + .remedy'

    \b
    Exit status:
      0  everything is available
      1  there are gaps, or no GPU metrics
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands import check as checking  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.reload import WebConfigFile  # noqa: PLC0415

    if stacks and seconds is None:
        raise SettingsError("--stacks belongs to --diagnose SECONDS")
    file = settings.web_config_file
    summary = WebConfigFile(Path(file)).active.summary if file else None
    if summary and not as_json:
        click.echo(f"web config      OK: {file}: {summary}")
    driver = _driver(settings)
    if seconds is None:
        report = checking.check(settings, driver, full=verbose)
    else:
        report = checking.diagnose(settings, driver, seconds, stacks=stacks)
    checking.finish(report, summary, as_json=as_json)


@commands.command
@click.argument("seconds", type=_duration, default=30.0)
@_stacks
@as_json
@_settings()
def diagnose(settings: Settings, seconds: float, *, stacks: bool, as_json: bool) -> None:
    """Watch for a while, then report why each GPU is idle.

    Watches for SECONDS, 30 if omitted. Reports for each GPU its waits, the processes that cause
    most of them, the first remedy to try and, from about 30 s on, the predicted gain.

    \b
    Watch for 30 s:
      $ gpu-bottleneck-exporter diagnose
    For longer, where GPUs idle now and then:
      $ gpu-bottleneck-exporter diagnose 5m
    With the awaited lines of Python code:
      $ gpu-bottleneck-exporter diagnose --stacks
    For a script:
      $ gpu-bottleneck-exporter diagnose 10 --json | jq '.gpus[] | {gpu, cause, remedy}'

    \b
    Exit status:
      0  reported; a GPU is up
      1  no GPU metrics
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands import check as checking  # noqa: PLC0415

    report = checking.diagnose(settings, _driver(settings), seconds, stacks=stacks)
    checking.finish(report, as_json=as_json)


@commands.command
@flag(
    "url URL",
    envvar="GPU_EXPORTER_URL",  # others cannot see a password in it
    help="Watch the exporter at this URL, such as node7:10170 or https://user:password@node7:10170.",
)
@_ca_file
@flag(
    "interval SECONDS",
    "seconds",
    type=Seconds(0.5, 60),
    default=2.0,
    help="Time between two readings, 0.5 to 60.",
)
@flag(
    "count N",
    "-n",
    type=click.IntRange(1),
    help="Print plain lines N times, then end. The default without a terminal is to print until "
    "stopped.",
)
@flag("once", "once_only", is_flag=True, help="The same as --count 1.")
@flag(
    "sort",
    "order",
    type=click.Choice(["idle", "gpu", "watts", "temperature", "memory", "cause"]),
    default="idle",
    help="Initial sort order of the live view.",
)
@as_json
@_settings()
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
    """Show the activity and waits of each GPU live.

    Shows this machine, or another one with --url, and the remedy for the selected GPU.
    Press ? for the keys, q to quit.

    \b
    Watch this machine:
      $ gpu-bottleneck-exporter top
    Watch another one:
      $ gpu-bottleneck-exporter top --url node7:10170
    For a script:
      $ gpu-bottleneck-exporter top --once --json | jq '.gpus[] | {gpu, busy_ratio, cause}'

    \b
    Exit status:
      0  ended by q or a signal, or after --count readings
      1  the last reading failed, or there is no GPU
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.top.run import top as run  # noqa: PLC0415
    from gpu_bottleneck_exporter.top.source import Local, Remote  # noqa: PLC0415

    source = Remote(url, ca_file) if url else Local(settings, _driver(settings), seconds)
    run(source, seconds, 1 if once_only else count, order, as_json=as_json)


@commands.command
@as_json
@_settings()
def once(settings: Settings, *, as_json: bool) -> None:
    """Print the metrics once.

    Samples for two ticks, then prints the response of a scrape. Counters start at zero. With
    --json it prints the node document, like /api/v1/node.

    \b
    The power of each GPU:
      $ gpu-bottleneck-exporter once | grep gpu_power_watts
    The activity of each GPU:
      $ gpu-bottleneck-exporter once --json | jq '.gpus[] | {gpu, busy_ratio, cause}'

    \b
    Exit status:
      0  metrics printed
      1  no GPU metrics
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands.watch import documented, scraped  # noqa: PLC0415

    render = documented if as_json else scraped
    text, trouble = render(settings, _driver(settings))
    click.echo(text, nl=False)
    if trouble:
        raise ExporterError(f"no GPU metrics: {trouble}")


def _addresses(file: Path) -> tuple[list[str], list[str]]:
    """The addresses in a file, one per line without # comments, and an error per malformed line.

    Raises SettingsError if there is no address.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    except OSError as error:
        raise SettingsError(f"--nodes: cannot read {file}: {error.strerror}") from error
    addresses, errors = [], []
    for number, line in enumerate(lines, 1):
        if word := line.partition("#")[0].strip():
            try:
                addresses.append(url_of(word))
            except click.BadParameter as error:
                errors.append(f"{file}:{number}: {error.message}")
    if not addresses:
        raise SettingsError(f"--nodes: {errors[0] if errors else f'There is no address in {file}'}")
    return addresses, errors


@commands.command
@flag("job ID", help="Report the job with this Slurm number or, in ledgers, id.")
@flag("pod NAMESPACE/NAME", help="Report the jobs of this pod.")
@flag("gpu NAME", help="Report the jobs on this GPU: node7/3, its index or its uuid.")
@flag(
    "owner NAME",
    help="Report the jobs of this user or namespace, or with --prometheus of the owner that the "
    "rules bill (rules --owner-label).",
)
@flag(
    "since DURATION",
    type=Seconds(60, 10 * 365 * 86_400),
    help="Report jobs that ran within this time, such as 12h. The default is 7d, or 30d with --job "
    "or --pod.",
)
@flag(
    "url URL",
    "urls",
    multiple=True,
    envvar="GPU_EXPORTER_URL",  # others cannot see a password in it
    help="Read the ledger of the exporter at this URL, such as node7:10170; repeatable. The "
    "default is this machine's exporter.",
)
@flag(
    "nodes FILE",
    type=click.Path(path_type=Path),
    help="Read the ledgers at the addresses in this file, one per line.",
)
@flag(
    "prometheus URL",
    help="Read what the rules recorded in the Prometheus at this URL, in place of ledgers.",
)
@flag(
    "reclaimable",
    is_flag=True,
    help="Report the jobs that could have been given back, and how many of them went on to work; "
    "with --prometheus.",
)
@flag("verbose", "-v", is_flag=True, help="Print the queries to Prometheus on stderr.")
@_ca_file
@flag(
    "deadline SECONDS",
    type=Seconds(1, 3600),
    default=20.0,
    help="Time after which the report omits what has not answered.",
)
@flag(
    "cost-per-gpu-hour AMOUNT",
    "hourly_cost",
    type=Amount(0, 1e6),
    help="Also report what lost GPU-hours cost; as CSV, also all GPU-hours.",
)
@flag("currency NAME", default="EUR", help="Currency of that amount.")
@flag(
    "co2-per-kwh GRAMS",
    type=Amount(0, 2000),
    help="Also report the CO2 of the energy, by the grams emitted for a kWh.",
)
@flag(
    "limit N",
    type=click.IntRange(1, 10_000),
    default=20,
    help="List the N jobs that lost most; totals cover all jobs.",
)
@flag(
    "format",
    "layout",
    type=click.Choice(["text", "json", "markdown", "html", "csv"]),
    default="text",
    help="Print text, JSON (null is unknown), Markdown, a self-contained page, or CSV by owner "
    "with FOCUS's columns (empty is unknown).",
)
@click.pass_context
def report(
    ctx: click.Context,
    /,
    urls: tuple[str, ...],
    nodes: Path | None,
    prometheus: str | None,
    **query: Any,
) -> None:
    """Report the losses of jobs, their causes and the remedies.

    Reads the ledgers in which exporters record finished and running jobs, or the metrics that
    rules have recorded in a Prometheus. Missing parts are listed on stderr.

    \b
    One Slurm job, on the nodes in a file:
      $ gpu-bottleneck-exporter report --job 4711 --nodes nodes.txt
    A week of a user's or a namespace's jobs, with their cost:
      $ gpu-bottleneck-exporter report --owner ada --url node7:10170 --cost-per-gpu-hour 2.5
    A month of the fleet, as a page:
      $ gpu-bottleneck-exporter report --since 30d --prometheus prometheus:9090 --format html
    A week of each owner's GPU-hours, for accounting:
      $ gpu-bottleneck-exporter report --nodes nodes.txt --cost-per-gpu-hour 2.5 --format csv
    The worst jobs of this machine since yesterday, for a script:
      $ gpu-bottleneck-exporter report --since 1d --format json | jq '.jobs[] | {id, busy_ratio}'

    \b
    Exit status:
      0  reported
      1  a node, or a part of its data, is missing
      2  an option is wrong, or there is no such job, owner or GPU
    """
    from gpu_bottleneck_exporter.commands import report as reporting  # noqa: PLC0415
    from gpu_bottleneck_exporter.report.bill import ReportQuery  # noqa: PLC0415

    explicit = nodes or ctx.get_parameter_source("urls") is ParameterSource.COMMANDLINE
    if prometheus and explicit:
        raise SettingsError("--prometheus reads no ledgers: omit --url and --nodes")
    if query.pop("reclaimable"):
        sys.exit(reporting.reclaimable(ReportQuery(**query), prometheus))
    addresses, errors = _addresses(nodes) if nodes else ([], [])
    sys.exit(reporting.report(ReportQuery(**query), [*urls, *addresses], prometheus, errors))


@commands.command
@click.argument("seconds", type=_duration, default=60.0)
@flag(
    "output FILE",
    "-o",
    "path",
    type=click.Path(path_type=Path),
    default="gpu-capture.jsonl",
    help="The file to write; it must not exist.",
)
@flag("unmasked", is_flag=True, help="Keep UUIDs and bus addresses as they are.")
@_settings()
def capture(settings: Settings, seconds: float, path: Path, *, unmasked: bool) -> None:
    """Write the driver's responses to a file, for tests of the exporter.

    Reads for SECONDS, 60 if omitted, without root; changes nothing and sends nothing. The file has
    at most 5 MiB. Attach it to an issue: replayed, it becomes a test.

    \b
    Capture all GPUs for a minute:
      $ gpu-bottleneck-exporter capture
    For two minutes, of which one is busy, into a file of your choice:
      $ gpu-bottleneck-exporter capture 2m -o l40s.jsonl

    \b
    Exit status:
      0  written
      1  no GPU, or the file cannot be written
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands import capture as capturing  # noqa: PLC0415
    from gpu_bottleneck_exporter.driver.open import open_recording  # noqa: PLC0415

    open_driver = partial(
        open_recording,
        settings.sysfs,
        wake_suspended=settings.wake_suspended,
        masked=not unmasked,
    )
    capturing.capture(open_driver, seconds, path)


@commands.command(context_settings={"default_map": {"listen_address": "127.0.0.1:10170"}})
@flag(
    "alerts",
    is_flag=True,
    help="Also run Prometheus and Alertmanager with the rule pack, and print alerts here.",
)
@_settings(web="web.", log_level="info")
def demo(settings: Settings, *, alerts: bool) -> None:
    """Serve simulated GPUs, to try the exporter without a real one.

    Small training loops, which are real processes, feed these GPUs; each has a bottleneck.

    \b
    Simulated GPUs on http://localhost:10170:
      $ gpu-bottleneck-exporter demo
    With Prometheus and Alertmanager, if they are installed:
      $ gpu-bottleneck-exporter demo --alerts

    \b
    Exit status:
      0  ended by SIGTERM or SIGINT
      1  cannot serve, or a part of the demo has failed
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands import serve as serving  # noqa: PLC0415
    from gpu_bottleneck_exporter.demo.alerts import alerting  # noqa: PLC0415
    from gpu_bottleneck_exporter.demo.run import BANNER, running  # noqa: PLC0415
    from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver  # noqa: PLC0415

    if alerts and settings.web_config_file:
        raise SettingsError("--alerts scrapes without TLS and users: omit --web.config.file")
    listener, web_config = serving.listening(settings)
    exporter = f"127.0.0.1:{listener.getsockname()[1]}"
    tell = partial(click.echo, err=True)
    with running() as board:
        tell(BANNER)
        with alerting(exporter, tell) if alerts else nullcontext():
            driver = partial(VirtualDriver, board)
            serving.serve(settings, driver, listener, web_config, at_a_terminal=True)


for shipped in (rules, dashboards, runbook, completion):
    commands.add_command(shipped)


def _driver(settings: Settings) -> Callable[[], Driver]:
    from gpu_bottleneck_exporter.driver.open import open_driver  # noqa: PLC0415

    return partial(open_driver, settings.sysfs, wake_suspended=settings.wake_suspended)


def main() -> NoReturn:
    """Run the command line; errors that the user can fix are one line on stderr."""
    # A signal at any time is a clean end, until a command installs its own handlers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_once)
    status = 0
    try:
        commands.main(prog_name=PROGRAM, standalone_mode=False)
    except ExporterError as error:
        status = error.status
        click.echo(f"{PROGRAM}: {error}", err=True)
    except click.ClickException as error:
        status = error.exit_code
        click.echo(f"{PROGRAM}: {error.format_message()}", err=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        status = 1
        click.echo(f"{PROGRAM}: {error.strerror}", err=True)
        # The output is still buffered, and its flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        # At exit, the interpreter resets handlers to "kill", but not SIG_IGN.
        _ignore_signals()
    sys.exit(status)


def _exit_once(*_: object) -> NoReturn:
    _ignore_signals()  # a second one would interrupt the cleanup
    sys.exit(0)


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
