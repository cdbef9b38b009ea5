"""What all commands share: every option can come from the environment, and those that run an engine take --config.

What counts, first to last: the command line, the environment, the file, the default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from .paths import PathUnusable, check_readable

PREFIX = "RINGCAST_"


class Command(TyperCommand):
    """A command whose option --some-name may be given as RINGCAST_SOME_NAME. Items of a list have spaces between."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.params:
            if isinstance(option, TyperOption) and option.envvar is None and option.name != "config":
                option.envvar = PREFIX + str(option.name).upper()
                option.show_envvar = True


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take defaults from a YAML file. Its keys are options of this command; under a command's name stand those that are
    for that command only. `BadParameter` names the key that is wrong."""
    if path is None:
        return None
    import yaml

    try:
        check_readable(path, "--config")
        found = yaml.safe_load(path.read_text())
    except PathUnusable as error:
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path} is not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{path} is not YAML: {str(error).replace(chr(10), ' ')}") from error
    if found is None:
        return path
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} holds no options: write lines like `max-num-seqs: 16`")
    commands = set(context.parent.command.commands) if context.parent is not None else set()  # type: ignore[attr-defined]
    own = found.get(context.info_name) or {}
    if not isinstance(own, dict):
        raise typer.BadParameter(f"{path}: below {context.info_name!r} there must be options")
    plain = {name: value for name, value in found.items() if name not in commands}
    known = {option.name: option for option in context.command.params if option.name != "config"}
    values: dict[str, Any] = {}
    for given, value in {**plain, **own}.items():
        name = str(given).replace("-", "_")
        if name not in known or isinstance(known[name], TyperArgument):
            raise typer.BadParameter(f"{path}: {context.info_name} has no option {given!r}: see --help")
        if value is not None:
            values[name] = value
    context.default_map = {**(context.default_map or {}), **values}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="A YAML file of options: `max-num-seqs: 16`; what is below `serve:` is for that command only.",
        callback=read_config,
        is_eager=True,
        envvar="RINGCAST_CONFIG",
    ),
]
