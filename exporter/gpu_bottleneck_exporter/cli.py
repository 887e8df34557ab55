"""The command line: each command, what it accepts, and what carries it out.

What carries a command out is imported when it runs: no command needs what the others do.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.flags import PROGRAM, Group, Seconds, as_json, flag, settings_flags
from gpu_bottleneck_exporter.settings import Settings

_ENDING = (signal.SIGTERM, signal.SIGINT)
_WATCHED = Seconds(1, 3600)


@click.group(
    cls=Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Prometheus exporter that reports why a GPU is idle.

    It counts how long each GPU is busy, charges the idle time to what the processes that feed the
    GPU wait for, and serves both as metrics. Each command has its own --help. Settings can also be
    made with the variable shown next to them; an option on the command line wins. Where seconds
    are asked for, 90, 90s and 1m30s are the same.

    \b
    What works here, what is missing and how to fix it:
      $ gpu-bottleneck-exporter check
    Serve metrics on http://localhost:10170/metrics:
      $ gpu-bottleneck-exporter serve
    Why the GPUs of this machine are idle, without Prometheus:
      $ gpu-bottleneck-exporter diagnose
    Try it without a GPU:
      $ gpu-bottleneck-exporter demo --alerts

    \b
    Exit status of all commands:
      0  good
      1  what was asked for has failed, or there are problems
      2  a command, an option, a setting or a name is wrong
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@commands.command
@settings_flags(web="web.", log_level="info")
def serve(settings: Settings) -> None:
    """Serve this machine's GPU metrics to Prometheus.

    Serves /metrics, a status page at / and the probes /-/healthy and /-/ready. Without a driver
    it serves what is available, reports what is missing and keeps trying.

    \b
    Serve on port 10170 of all addresses:
      $ gpu-bottleneck-exporter serve
    Local clients only:
      $ gpu-bottleneck-exporter serve --web.listen-address 127.0.0.1:9400 --log.format json
    With TLS and passwords:
      $ gpu-bottleneck-exporter serve --web.config.file /etc/gpu-exporter/web.yml
    With fewer rights:
      $ gpu-bottleneck-exporter serve --without=kubelet,host_pids --no-collector.link

    \b
    Exit status:
      0  ended by SIGTERM or SIGINT
      1  cannot serve: the address is in use, or a part of the exporter has failed
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands import serve as serving  # noqa: PLC0415

    serving.serve(settings, _driver(settings), *serving.listening(settings))


@commands.command
@flag(
    "diagnose SECONDS",
    "seconds",
    type=_WATCHED,
    help="The same as the command diagnose.",
)
@flag("verbose", "-v", is_flag=True, help="Also list the driver, the signals and the GPUs.")
@as_json
@settings_flags(web="web.config.file")
def check(settings: Settings, seconds: float | None, *, verbose: bool, as_json: bool) -> None:
    """Report what works, what is missing and how to fix it.

    Give it the options and variables of the exporter that you check.

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

    file = settings.web_config_file
    summary = WebConfigFile(Path(file)).active.summary if file else None
    if summary and not as_json:
        click.echo(f"web config      OK: {file}: {summary}")
    driver = _driver(settings)
    if seconds is None:
        report = checking.check(settings, driver, full=verbose)
    else:
        report = checking.diagnose(settings, driver, seconds)
    checking.tell(report, summary, as_json=as_json)


@commands.command
@click.argument("seconds", type=_WATCHED, default=30.0)
@as_json
@settings_flags()
def diagnose(settings: Settings, seconds: float, *, as_json: bool) -> None:
    """Watch for a while, then report why each GPU is idle.

    Watches for SECONDS, 30 if omitted. Reports for each GPU what it waited for, the processes most
    to blame, what to try first and, from about 30 s on, what which change would bring.

    \b
    Watch for 30 s:
      $ gpu-bottleneck-exporter diagnose
    For longer, where GPUs idle now and then:
      $ gpu-bottleneck-exporter diagnose 5m
    For a script:
      $ gpu-bottleneck-exporter diagnose 10 --json | jq '.gpus[] | {gpu, cause, remedy}'

    \b
    Exit status:
      0  reported; a GPU is up
      1  no GPU metrics
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands import check as checking  # noqa: PLC0415

    checking.tell(checking.diagnose(settings, _driver(settings), seconds), as_json=as_json)


@commands.command
@flag(
    "url URL",
    envvar="GPU_EXPORTER_URL",  # others cannot see a password in it
    help="Watch the exporter at this URL, such as node7:10170 or https://user:password@node7:10170.",
)
@flag(
    "ca-file FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CA certificates to trust with --url, instead of the system's.",
)
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
    help="Print plain lines N times, then end. Without it, and without a terminal, it prints until "
    "it is stopped.",
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
@settings_flags()
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
@settings_flags()
def once(settings: Settings, *, as_json: bool) -> None:
    """Print the metrics once.

    Samples for two ticks, then prints what a scrape would return. Counters start at zero. With
    --json it prints what each GPU did in two ticks, like /api/v1/node.

    \b
    The power of each GPU:
      $ gpu-bottleneck-exporter once | grep gpu_power_watts
    What each GPU did meanwhile:
      $ gpu-bottleneck-exporter once --json | jq '.gpus[] | {gpu, busy_ratio, cause}'

    \b
    Exit status:
      0  metrics printed
      1  no GPU metrics
      2  an option or a setting is wrong
    """
    from gpu_bottleneck_exporter.commands.watch import documented, scraped  # noqa: PLC0415

    made = documented if as_json else scraped
    text, trouble = made(settings, _driver(settings))
    click.echo(text, nl=False)
    if trouble:
        raise ExporterError(f"no GPU metrics: {trouble}")


@commands.command(context_settings={"default_map": {"listen_address": "127.0.0.1:10170"}})
@flag(
    "alerts",
    is_flag=True,
    help="Also run Prometheus and Alertmanager with the rule pack, and print alerts here.",
)
@settings_flags(web="web.", log_level="info")
def demo(settings: Settings, *, alerts: bool) -> None:
    """Serve simulated GPUs: the exporter without a GPU.

    Small training loops, real processes, feed the simulated GPUs, each with another bottleneck.

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


def _writing(text: str) -> Callable[[Any], Any]:
    """`--output`, with `text` as its help, and `--force`."""
    folder = click.Path(file_okay=False, path_type=Path)
    output = flag("output DIR", "folder", type=folder, help=text)
    force = flag("force", is_flag=True, help="Let --output overwrite files that differ.")
    return lambda command: output(force(command))


@commands.command
@_writing("Write one file per group to this directory instead of printing one file.")
@flag(
    "dialect",
    type=click.Choice(["exporter", "dcgm", "both"]),
    default="exporter",
    help="Whose metrics the rules read: this exporter's, dcgm-exporter's, or both side by side.",
)
@flag(
    "for-scale N",
    "scale",
    type=float,
    default=1.0,
    help="To try alerts out: divide all durations, windows and intervals by N. Scrape N times as "
    "often.",
)
@flag(
    "no-keep-firing-for",
    "without_keep_firing",
    is_flag=True,
    help="Omit keep_firing_for, for Prometheus before 2.42 and older vmalert.",
)
@flag(
    "no-prescriptions",
    "without_prescriptions",
    is_flag=True,
    help="Omit prescriptions from descriptions, for vmalert -replay, which cannot look them up.",
)
@flag("runbook-base URL", help="Base URL of the runbooks that alerts link to.")
@flag("grafana-url URL", help="URL of Grafana, for alerts to link to its dashboards.")
@flag(
    "workload-namespace",
    is_flag=True,
    help="Set the label namespace of alerts about a job to the namespace of its pod, as "
    "AlertmanagerConfig objects and kube-prometheus-stack's inhibition rules expect.",
)
@flag(
    "prometheusrule",
    is_flag=True,
    help="Print one PrometheusRule object of the Prometheus Operator.",
)
@flag("name", help="Name of the object; gpu-bottleneck-exporter if omitted.")
@flag("namespace", help="Namespace of the object.")
@flag("label K=V", "labels", multiple=True, help="Label of the object; repeatable.")
def rules(folder: Path | None, *, force: bool, **wanted: Any) -> None:
    """Print or write the recording and alerting rules.

    Prints all groups as one file, or writes a file per group with --output.

    \b
    Write the rule files for Prometheus:
      $ gpu-bottleneck-exporter rules --output /etc/prometheus/rules
    Install as object:
      $ gpu-bottleneck-exporter rules --prometheusrule --namespace monitoring | kubectl apply -f -
    Try alerts out in seconds instead of minutes:
      $ gpu-bottleneck-exporter rules --for-scale 60

    \b
    Exit status:
      0  printed or written
      1  a file cannot be written, or differs and --force is missing
      2  an option or its value is wrong
    """
    from gpu_bottleneck_exporter.commands import files  # noqa: PLC0415
    from gpu_bottleneck_exporter.commands import rules as output  # noqa: PLC0415

    choice = output.Wanted(**wanted)
    if folder is not None:
        files.write(folder, output.rendered(choice), force=force)
    else:
        click.echo(output.printed(choice), nl=False)


def _names(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """Names that the command `ctx.command` knows: `dashboards` or `runbook`."""
    from gpu_bottleneck_exporter.commands import files  # noqa: PLC0415

    known = files.runbooks() if ctx.command is runbook else files.dashboards()
    return [name for name in known if name.startswith(typed)]


@commands.command
@click.argument("name", required=False, shell_complete=_names)
@_writing("Write all dashboards to this directory.")
def dashboards(name: str | None, folder: Path | None, *, force: bool) -> None:
    """List, print or write the Grafana dashboards.

    Lists their names, prints the one NAME, or writes all with --output.

    \b
    List the dashboards:
      $ gpu-bottleneck-exporter dashboards
    Write all of them:
      $ gpu-bottleneck-exporter dashboards --output /var/lib/grafana/dashboards

    \b
    Exit status:
      0  printed or written
      1  a file cannot be written, or differs and --force is missing
      2  an option or the name is wrong
    """
    from gpu_bottleneck_exporter.commands import files  # noqa: PLC0415

    known = files.dashboards()
    if folder is not None and name is not None:
        raise SettingsError("--output writes all dashboards: omit the name")
    if folder is not None:
        files.write(folder, {f"{name}.json": text for name, text in known.items()}, force=force)
    else:
        click.echo(files.one_of(known, "dashboard", name), nl=False)


@commands.command
@click.argument("name", required=False, shell_complete=_names)
def runbook(name: str | None) -> None:
    """List the runbooks, or print one.

    NAME is that of an alert, or what a GPU waits for.

    \b
    List the runbooks:
      $ gpu-bottleneck-exporter runbook
    What to do about an alert:
      $ gpu-bottleneck-exporter runbook GpuCpuThrottled | less
    What to do about a cause:
      $ gpu-bottleneck-exporter runbook worker_cpu | less

    \b
    Exit status:
      0  printed
      1  cannot print
      2  there is no such runbook
    """
    from gpu_bottleneck_exporter.commands import files  # noqa: PLC0415
    from gpu_bottleneck_exporter.remedies import RUNBOOKS  # noqa: PLC0415

    alert = RUNBOOKS.get(name, name.removesuffix(".md")) if name else None
    click.echo(files.one_of(files.runbooks(), "runbook", alert), nl=False)


@commands.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what completes commands in a shell.

    A shell that reads it at its start completes commands, options and names.

    \b
    For bash 4.4 or later:
      $ gpu-bottleneck-exporter completion bash >> ~/.bashrc
    For zsh, after compinit:
      $ gpu-bottleneck-exporter completion zsh >> ~/.zshrc
    For fish:
      $ gpu-bottleneck-exporter completion fish >> ~/.config/fish/config.fish

    \b
    Exit status:
      0  printed
      1  cannot print
      2  the name of the shell is wrong
    """
    from click.shell_completion import shell_complete  # noqa: PLC0415

    shell_complete(commands, {}, PROGRAM, "_GPU_BOTTLENECK_EXPORTER_COMPLETE", f"{shell}_source")


def _driver(settings: Settings) -> Callable[[], Any]:
    from gpu_bottleneck_exporter.driver.open import open_driver  # noqa: PLC0415

    return partial(open_driver, settings.sysfs, wake_suspended=settings.wake_suspended)


def main() -> NoReturn:
    """Entry point: errors that a user can put right are one line on stderr."""
    # Until something better takes them over: a signal at any moment is a clean end.
    for number in _ENDING:
        signal.signal(number, _end_once)
    status = 0
    try:
        commands.main(prog_name=PROGRAM, standalone_mode=False)
    except ExporterError as error:
        status = error.status
        click.echo(f"{PROGRAM}: {error}", err=True)
    except click.ClickException as error:
        status = error.exit_code
        click.echo(f"{PROGRAM}: {error.format_message()}", err=True)
    finally:
        # The interpreter puts handlers back to "kill" before it ends; this one it leaves.
        _ignore_signals()
    sys.exit(status)


def _end_once(*_: object) -> NoReturn:
    _ignore_signals()  # a second one would end the cleaning up
    sys.exit(0)


def _ignore_signals() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
