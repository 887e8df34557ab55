"""Commands that print packaged files: rules, dashboards, runbooks, shell completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.flags import PROGRAM, Command, Decorator, flag


def _writing(text: str) -> Decorator:
    """Decorator that adds `--output`, with `text` as its help, and `--force`."""
    folder = click.Path(file_okay=False, path_type=Path)
    output = flag("output DIR", "folder", type=folder, help=text)
    force = flag("force", is_flag=True, help="Let --output overwrite files that differ.")
    return lambda command: output(force(command))


@click.command(cls=Command)
@_writing("Write the rule files to this directory instead of printing one file.")
@flag(
    "dialect",
    type=click.Choice(["exporter", "dcgm", "both"]),
    default="exporter",
    help="Source of the metrics: this exporter, dcgm-exporter, or both side by side.",
)
@flag(
    "jobstats",
    is_flag=True,
    help="Also record the metrics that Princeton's jobstats queries, from this exporter's.",
)
@flag(
    "opencost",
    is_flag=True,
    help="Also record the metrics of dcgm-exporter that OpenCost queries, from this exporter's.",
)
@flag(
    "owner-label LABEL",
    help="Attribute losses of jobs to the value of this label of kube_pod_labels, or else of "
    "kube_namespace_labels, such as label_team; by default to namespaces and users.",
)
@flag(
    "budget OWNER=HOURS",
    "budgets",
    multiple=True,
    help="GPU-hours that an owner may lose in a calendar month, to alert when they will not last; "
    "repeatable.",
)
@flag(
    "alert NAME=SEVERITY",
    "alerts",
    multiple=True,
    help="Severity of an alert: critical, warning or info; off omits it. Repeatable.",
)
@flag(
    "group-size N",
    type=click.IntRange(1),
    help="Split groups of more than N rules; Mimir and Grafana Cloud take 20 by default.",
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
    help="Omit recommendations from descriptions, for vmalert -replay, which cannot look them up.",
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
    help="Print PrometheusRule objects of the Prometheus Operator: recording rules, those "
    "that read other exporters, and alerts.",
)
@flag("name", help="Name of the objects; gpu-bottleneck-exporter if omitted.")
@flag("namespace", help="Namespace of the objects.")
@flag("label K=V", "labels", multiple=True, help="Label of the objects; repeatable.")
def rules(folder: Path | None, *, force: bool, **options: Any) -> None:
    """Print or write the recording and alerting rules.

    Prints all groups as one file. With --output it writes rule files and, in alertmanager/, an
    example of routes for Alertmanager.

    \b
    Write the rule files for Prometheus:
      $ gpu-bottleneck-exporter rules --output /etc/prometheus/rules
    Install them as objects of the Prometheus Operator:
      $ gpu-bottleneck-exporter rules --prometheusrule --namespace monitoring | kubectl apply -f -
    Try alerts out in seconds instead of minutes:
      $ gpu-bottleneck-exporter rules --for-scale 60
    With budgets for two teams, named by a label of their pods or namespaces:
      $ gpu-bottleneck-exporter rules --owner-label label_team --budget vision=400 --budget nlp=150

    \b
    Exit status:
      0  printed or written
      1  a file cannot be written, or differs and --force is missing
      2  an option or its value is wrong
    """
    from gpu_bottleneck_exporter import rulepack  # noqa: PLC0415
    from gpu_bottleneck_exporter.commands import files  # noqa: PLC0415
    from gpu_bottleneck_exporter.commands import rules as output  # noqa: PLC0415

    options["severities"] = output.severities(options.pop("alerts"))
    options["budgets"] = output.hours(options["budgets"])
    choice = output.RuleOptions(**options)
    if folder is not None:
        files.write(folder, output.rendered(choice), force=force)
        if not choice.prometheusrule:  # the operator has its own routes
            files.write_examples(folder, rulepack.routes())
    else:
        click.echo(output.printed(choice), nl=False)


def _names(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
    from gpu_bottleneck_exporter.commands import files  # noqa: PLC0415

    pages = files.runbooks() if ctx.command is runbook else files.dashboards()
    return [name for name in pages if name.startswith(typed)]


@click.command(cls=Command)
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

    texts = files.dashboards()
    if folder is not None and name is not None:
        raise SettingsError("--output writes all dashboards: omit the name")
    if folder is not None:
        files.write(folder, {f"{name}.json": text for name, text in texts.items()}, force=force)
    else:
        click.echo(files.select(texts, "dashboard", name), nl=False)


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=_names)
def runbook(name: str | None) -> None:
    """List the runbooks, or print one.

    NAME is an alert, a cause, or a value of the label waiting_on.

    \b
    List the runbooks:
      $ gpu-bottleneck-exporter runbook
    The runbook of an alert:
      $ gpu-bottleneck-exporter runbook GpuStraggler | less
    The runbook of an alert's cause:
      $ gpu-bottleneck-exporter runbook cpu_throttled | less
    The runbook of a wait:
      $ gpu-bottleneck-exporter runbook worker_cpu | less

    \b
    Exit status:
      0  printed
      1  cannot print
      2  there is no such runbook
    """
    from gpu_bottleneck_exporter.commands import files  # noqa: PLC0415
    from gpu_bottleneck_exporter.remedies import RUNBOOKS  # noqa: PLC0415

    pages = files.runbooks()
    by_cause = {page.partition("-")[2]: page for page in pages}
    page = {**by_cause, **RUNBOOKS}.get(name, name.removesuffix(".md")) if name else None
    click.echo(files.select(pages, "runbook", page), nl=False)


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    A shell that reads it at startup completes commands, options and names.

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

    shell_complete(
        ctx.find_root().command, {}, PROGRAM, "_GPU_BOTTLENECK_EXPORTER_COMPLETE", f"{shell}_source"
    )
