"""The unit, its environment file, the Dockerfile and the lock file, against what they refer to."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from importlib.metadata import entry_points, requires

import click
import pytest
from packaging.requirements import Requirement

from deploy.machine import DEPLOY, DOCKERFILE, NAME, PREFIX, README, REPOSITORY, UNIT, setting
from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.cli import commands
from gpu_bottleneck_exporter.errors import SettingsError
from gpu_bottleneck_exporter.settings import Settings
from support.options import options_of

ENVIRONMENT = (DEPLOY / f"systemd/{NAME}.env").read_text()
PROJECT = (REPOSITORY / "pyproject.toml").read_text()
SHIPPED_EXTRAS = ("kubernetes", "web-config")


def test_the_unit_starts_a_command_that_exists() -> None:
    program, command, *rest = shlex.split(setting("ExecStart"))
    assert program == f"{PREFIX}/bin/{NAME}"
    assert NAME in entry_points(group="console_scripts").names
    assert isinstance(commands.commands[command], click.Command)
    assert rest == ["$ARGS"]


def test_bad_settings_end_with_the_status_that_is_not_tried_again() -> None:
    status = int(setting("RestartPreventExitStatus"))
    assert status == click.UsageError.exit_code
    with pytest.raises(SettingsError) as bad:
        Settings(interval_seconds=60)
    assert bad.value.status == status


def test_the_readme_installs_the_files_of_the_unit() -> None:
    assert f"python3 -m venv {PREFIX}\n" in README
    assert setting("EnvironmentFile") == f"-/etc/default/{NAME}"
    assert f"cp exporter/deploy/systemd/{NAME}.env /etc/default/{NAME}\n" in README
    assert f"cp exporter/deploy/systemd/{UNIT.name} /etc/systemd/system/\n" in README


def test_the_environment_file_has_every_setting_and_no_other_with_its_default() -> None:
    documented = dict(re.findall(r"^#(GPU_EXPORTER_\w+)=(.*)$", ENVIRONMENT, re.MULTILINE))
    options = {f"{option.envvar}": option for option in options_of("serve")}
    assert documented.keys() == options.keys()
    for variable, option in options.items():
        default = option.get_default(click.Context(commands.commands["serve"]))
        shown = f"{default}".lower() if isinstance(default, bool) else f"{default}"
        assert not default or documented[variable] == shown, variable


def test_the_environment_file_sets_nothing_but_would_be_taken() -> None:
    lines = [line for line in ENVIRONMENT.splitlines() if line and not line.startswith("#")]
    assert lines == []
    (arguments,) = re.findall(r'^#ARGS="(.*)"$', ENVIRONMENT, re.MULTILINE)
    serve = commands.commands["serve"]
    with serve.make_context("serve", shlex.split(arguments)) as context:
        assert context.params["log_format"] == "json"


def test_the_image_runs_the_installed_program() -> None:
    port = Settings().listen_address.removeprefix(":")
    runs, version = {f'ENTRYPOINT ["{NAME}"]', 'CMD ["serve"]'}, f"ARG VERSION={__version__}"
    assert {*runs, f"EXPOSE {port}", version} <= {*DOCKERFILE.splitlines()}


def locked(file: str) -> Mapping[str, str]:
    """Versions by name; raises where one has no hashes."""
    text = (DEPLOY / file).read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all("--hash=sha256:" in line for line in lines)
    return dict(line.split(maxsplit=1)[0].split("==") for line in lines)


def test_the_lock_files_have_all_requirements_of_package_and_build() -> None:
    shipped = [item for item in map(Requirement, requires(NAME) or ()) if is_shipped(item)]
    (needed,) = re.findall(r"^requires = \[(.*)\]$", PROJECT, re.MULTILINE)
    built_with = map(Requirement, json.loads(f"[{needed}]"))
    for file, expected in (("requirements.txt", shipped), ("build-requirements.txt", built_with)):
        versions = locked(file)
        assert [item for item in expected if not item.specifier.contains(versions[item.name])] == []


def is_shipped(one: Requirement) -> bool:
    return one.marker is None or any(f'"{extra}"' in f"{one.marker}" for extra in SHIPPED_EXTRAS)
