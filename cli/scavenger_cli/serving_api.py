"""Arguments and options of `scavenger api`: who may use the server's API, and what it tells of itself."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from scavenger.domain.access import Role
from scavenger_cli.options import Output, OutputOption, StoreOption, finish

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Manage who may use the REST API of `scavenger serve`.",
)


class RoleName(StrEnum):
    """What a user may do."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"


class LogFormat(StrEnum):
    """Form of log records."""

    TEXT = "text"
    JSON = "json"


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def info(store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show where the API is served, who may use it, and what became of notifications."""

    def command() -> int:
        from scavenger_cli.commands.api import show_info

        return show_info(store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def token(
    user: Annotated[
        str | None, typer.Argument(metavar="USER", help="Whose token. Default: this account, as admin.")
    ] = None,
    role: Annotated[
        RoleName | None, typer.Option(help="Add the user with this role, or change the role.")
    ] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    days: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=3650, help="How long it is valid. Default: for good."),
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a token, which is shown once: only its digest is stored."""

    def command() -> int:
        from scavenger_cli.commands.api import make_token

        chosen: Role | None = None if role is None else role.value
        as_json = output is Output.JSON
        return make_token(user, chosen, label=label, days=days, store_url=store, as_json=as_json)

    finish(output, command)


@app.command()
def revoke(
    number: Annotated[
        int | None,
        typer.Argument(metavar="TOKEN", min=1, help="Its number, as `scavenger api info` shows it."),
    ] = None,
    sessions: Annotated[
        str | None, typer.Option(metavar="USER", help="End all sessions of this user in browsers.")
    ] = None,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """End a token, with its sessions in browsers and all tokens that were made with it; or a user's sessions."""

    def command() -> int:
        from scavenger_cli.commands.api import revoke_tokens

        return revoke_tokens(number, sessions, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command()
def systemd(
    account: Annotated[
        str | None, typer.Option(metavar="NAME", help="Account that it runs under. Default: this one.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Form of its log records.")] = LogFormat.JSON,
    store: StoreOption = None,
) -> None:
    """Print a unit with which systemd runs `scavenger serve`, with few rights; it writes nothing."""

    def command() -> int:
        from scavenger_cli.commands.systemd import print_unit

        return print_unit(account, store_url=store, json_log=log_format is LogFormat.JSON)

    finish(Output.TEXT, command)


@app.command()
def login(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The server. Default: $SCAVENGER_SERVER.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Keep the token of a server for later commands; it is asked for, or read from standard input."""

    def command() -> int:
        from scavenger_cli.commands.api import login as keep

        return keep(url, as_json=output is Output.JSON)

    finish(output, command)
