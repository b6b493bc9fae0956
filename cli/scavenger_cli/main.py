"""The `scavenger` command: arguments and options. The code of a command is imported only when it runs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scavenger import logs
from scavenger.errors import Interrupted, ScavengerError
from scavenger.masking import mask
from scavenger.private_files import make_private_folder
from scavenger.version import __version__
from scavenger_cli.lazy import CommandGroup, make_app, show_help
from scavenger_cli.ui import console

USAGE_ERROR = 2


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scavenger {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    show_help(context)


app = make_app(
    CommandGroup(
        "Decide which machines a training job should run on, and run it there.",
        {
            "optimize": "run:optimize",
            "plan": "run:plan",
            "curves": "curves:curves",
            "explain": "explain:explain",
            "status": "status:status",
            "init": "init:init",
            "demo": "demo:demo",
            "logs": "logs:logs",
            "hosts": "hosts:hosts",
            "scale": "operate:scale",
            "migrate": "operate:migrate",
            "stop": "operate:stop",
            "resume": "resume:resume",
            "serve": "serve:serve",
            "gc": "gc:gc",
            "image": "image:image",
            "cost": "cost:cost",
            "doctor": "doctor:doctor",
            "policy": "policy:policy",
            "simulate": "simulate:simulate_trace",
            "models": CommandGroup(
                "Manage the fitted models, which later jobs reuse.",
                {
                    "fit": "fit:fit",
                    "list": "stored:list_models",
                    "show": "stored:show_model",
                    "rm": "stored:remove_model",
                    "export": "stored:export_models",
                    "import": "stored:import_models",
                    "backtest": "backtest:backtest",
                },
            ),
            "catalog": CommandGroup(
                "Show machine types of the clouds and their prices.",
                {"refresh": "catalog:refresh"},
                own="catalog:catalog",
            ),
            "jobs": CommandGroup(
                "Submit jobs that run without the command; show, cancel and delete them.",
                {
                    "rm": "remove:rm",
                    "launch": "run:launch",
                    "queue": "queue:queue",
                    "logs": "queue:logs",
                    "cancel": "queue:cancel",
                },
            ),
            "pool": CommandGroup(
                "Show the pools of slots that jobs share: who has how many, what comes, and why.",
                {
                    "explain": "pool:explain",
                    "what-if": "pool:what_if",
                    "pause": "pool:pause",
                    "drain": "pool:drain",
                },
                own="pool:show",
                of="--name",
            ),
            "aggregators": CommandGroup(
                "Show the pool of aggregators that jobs with `aggregation: shared` use on this machine.",
                {
                    "drain": "aggregators:drain",
                    "serve": "aggregators:serve",
                    "add-node": "aggregators:add_node",
                },
                own="aggregators:show",
            ),
            "schema": CommandGroup("Print the schemas of Scavenger's files.", {"job": "schema:job"}),
            "store": CommandGroup(
                "Back up, restore and repair the database of jobs.",
                {
                    "recover": "recover:recover",
                    "backup": "backing_up:backup",
                    "restore": "backing_up:restore",
                },
            ),
            "api": CommandGroup(
                "Manage who may use the REST API of `scavenger serve`.",
                {
                    "info": "api:info",
                    "token": "api:token",
                    "revoke": "api:revoke",
                    "systemd": "systemd:systemd",
                    "login": "api:login",
                },
            ),
            "leader": CommandGroup(
                "Follow and end jobs that are led by a VM of their own (`leader: vm`).",
                {
                    "list": "leader:list_leaders",
                    "follow": "leader:follow",
                    "connect": "leader:connect",
                    "end": "leader:end",
                },
            ),
            "operator": CommandGroup(
                "Runs in a Kubernetes cluster, and looks after its ElasticJobs.",
                {"run": "operator:run", "crd": "operator:crd"},
            ),
        },
    ),
    _root,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments, without the program's name; None: those of this process.

    Returns:
        The exit code (see `scavenger.errors`). No exception is raised; SCAVENGER_DEBUG=1 shows tracebacks.
    """
    console.prepare_streams()
    try:
        chosen = logs.read_settings()
        # in a program of its own alone: the records of one that calls this are its own
        logs.set_up("scavenger", chosen, level="WARNING", hold_others=arguments is None and not chosen.level)
        code = app(args=arguments, prog_name="scavenger", standalone_mode=False)
        console.write(sys.stdout, "")
        return int(code or 0)
    except typer.Abort:
        return Interrupted.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except ScavengerError as error:
        _show_traceback_if_asked()
        console.error(error, frames=getattr(error, "frames", ()))
        return error.exit_code
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "scavenger"
        words = error.format_message().replace("Value error, ", "")  # the validator's, not the user's
        console.error(f"{words} (see `{path} --help`)")
        return USAGE_ERROR
    except Exception as error:  # noqa: BLE001 - the last resort of a program that shows no tracebacks
        _show_traceback_if_asked()
        console.error(f"internal fault, {type(error).__name__}: {error}; {_keep_traceback()}")
        return 1


def _show_traceback_if_asked() -> None:
    if os.environ.get("SCAVENGER_DEBUG", "") not in ("", "0"):
        console.write(sys.stderr, mask(traceback.format_exc()))


def _keep_traceback() -> str:
    """Write the traceback to a file, so that a bug report can quote it; return where it is."""
    import tempfile

    from platformdirs import user_log_path

    text = f"scavenger {__version__}, Python {sys.version}\n{mask(traceback.format_exc())}"
    for folder in (user_log_path("scavenger"), Path(tempfile.gettempdir())):
        try:
            make_private_folder(folder)
            number, name = tempfile.mkstemp(prefix="scavenger-", suffix=".traceback", dir=folder)
            with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
        except OSError:
            continue
        return f"the traceback is in {name}"
    return "set SCAVENGER_DEBUG=1 to see the traceback"


if __name__ == "__main__":
    sys.exit(main())
