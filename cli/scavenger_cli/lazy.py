"""Groups of commands whose modules are imported when one of their commands runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from scavenger.errors import ScavengerError
from scavenger_cli.options import JSON
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = "scavenger_cli.commands"
_SETTINGS = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A group of commands.

    Attributes:
        help: What `--help` says of it.
        commands: Its commands by name: `module:function` below `scavenger_cli.commands`, or another group.
        own: The command that runs when none of `commands` is named; None to show the help.
        of: The option of `own` that one word which names none of `commands` is the value of; empty for none.
    """

    help: str
    commands: Mapping[str, str | CommandGroup]
    own: str | None = None
    of: str = ""


def make_app(group: CommandGroup, root: Callable[..., None] | None = None) -> typer.Typer:
    """Make the program of a group: nothing of its commands is imported until one of them is looked up.

    Args:
        root: The callback with the options of the program itself; None for `own` of the group, or none.
    """
    app = typer.Typer(
        cls=_lazy(group),
        add_completion=root is not None,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_SETTINGS,
        help=group.help,
    )
    own = root or (show_help if group.own is None else _found(group.own))
    app.callback(invoke_without_command=True)(own)
    return app


def show_help(context: typer.Context) -> None:
    """Print the help of a group whose commands were not named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _found(path: str) -> Callable[..., int]:
    module, name = path.split(":")
    function: Callable[..., int] = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    return function


def _stub(name: str, entry: str | CommandGroup) -> TyperCommand:
    """A command as lists show it, with the help that its source has: importing all of them would take seconds."""
    if isinstance(entry, CommandGroup):
        return TyperCommand(name=name, help=entry.help)
    module, function = entry.split(":")
    spec = find_spec(f"{_PACKAGE}.{module}")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    found = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function)
    return TyperCommand(name=name, help=ast.get_docstring(found))


class _Commands(Mapping[str, Any]):
    """The commands of a group; each is made, and its module imported, when it is first looked up."""

    def __init__(self, entries: Mapping[str, str | CommandGroup]) -> None:
        self._entries, self._made = entries, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            entry = self._entries[name]
            if isinstance(entry, CommandGroup):
                app = make_app(entry)
            else:
                app = typer.Typer(add_completion=False, rich_markup_mode=None)
                app.command()(_found(entry))
            command = typer.main.get_command(app)
            command.name = name
            self._made[name] = command
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _lazy(group: CommandGroup) -> type[TyperGroup]:
    """The class of a group's command line."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands: Any = _Commands(group.commands)

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            word, second = [*args, "", ""][:2]
            alone = word and not word.startswith("-") and (not second or second.startswith("-"))
            if group.of and alone and word not in group.commands:
                args = [group.of, *args]
            return super().parse_args(ctx, args)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            self._listing().format_commands(ctx, formatter)

        def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
            listing = self._listing()
            listed = typer.Context(listing, info_name=ctx.info_name, parent=ctx.parent)
            return listing.shell_complete(listed, incomplete)

        def _listing(self) -> TyperGroup:
            """This group with commands that are only listed, for which nothing is imported."""
            stubs: dict[str, Any] = {name: _stub(name, entry) for name, entry in group.commands.items()}
            return TyperGroup(name=self.name, commands=stubs, params=self.params)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except (typer.Exit, typer.Abort, typer.TyperException):
                raise
            except Exception as error:
                if ctx.parent is None and ctx.meta.get(JSON):
                    _emit_error(error)
                raise

    return LazyGroup


def _emit_error(error: Exception) -> None:
    """Write an error as the JSON document that was asked for."""
    known = isinstance(error, ScavengerError)
    console.emit_json(
        {
            "schema_version": console.SCHEMA_VERSION,
            "error": str(error) if known else f"internal fault: {type(error).__name__}",
            "exit_code": error.exit_code if isinstance(error, ScavengerError) else 1,
        }
    )
