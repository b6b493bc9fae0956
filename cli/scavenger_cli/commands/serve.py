"""`serve`: run submitted jobs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scavenger.domain.submission import StoredBudgets
from scavenger.errors import ConfigurationError
from scavenger_cli.options import StoreOption
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.policy.admission import QueueLimits
    from scavenger.store import Store

_LAST_S = 2.0
"""Longest wait at the end for notifications that are being sent; the next server sends the rest."""


@dataclass(frozen=True, slots=True)
class Given:
    """Limits from the command line, which replace those of the settings file; None where one was not given.

    Budgets are kept in the store, for every server of it, also those of other machines and those of detached jobs.
    """

    jobs: int | None = None
    budget: str | None = None
    budget_per_user: str | None = None

    def over(self, limits: QueueLimits) -> QueueLimits:
        """The limits with these in their place, but for the budgets."""
        given: dict[str, Any] = {"jobs_max": self.jobs}
        return replace(limits, **{name: value for name, value in given.items() if value is not None})

    def budgets(self, stored: StoredBudgets) -> StoredBudgets:
        """The budgets of a store with these in their place.

        Raises:
            ConfigurationError: If an amount of money cannot be read.
        """
        return StoredBudgets(
            _money("--budget", self.budget, stored.budget_usd),
            _money("--budget-per-user", self.budget_per_user, stored.user_budget_usd),
        )


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the API is served; see `scavenger.server.settings.ServerSettings`."""

    host: str
    port: int
    allowed_hosts: tuple[str, ...]
    certificate: Path | None
    key: Path | None


def _money(option: str, text: str | None, stored: float | None) -> float | None:
    from scavenger.domain.forms import parse_money

    if text is None:
        return stored
    if text == "none":
        return None
    try:
        return parse_money(f"${text.removeprefix('$')}")
    except ValueError as error:
        raise ConfigurationError(f"{option} {error}") from None


def serve(
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most jobs at once. Default: 16, or of the settings file."),
    ] = None,
    pool: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Pools of this machine, TOML with a table [pool.NAME] each. Default: those of the settings file.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="$", help="Most that all jobs of a month may cost; kept in the store. none: no limit."
        ),
    ] = None,
    budget_per_user: Annotated[
        str | None, typer.Option(metavar="$", help="The same for the jobs of each user.")
    ] = None,
    api: Annotated[bool, typer.Option("--api/--no-api", help="Serve the REST API, too.")] = True,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the API listens; any but loopback needs TLS.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port of the API; 0: one that is free.")
    ] = 8765,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Another name by which clients address the API. Repeat for several."
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for TLS, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    store_url: StoreOption = None,
) -> int:
    """Run submitted jobs until Ctrl-C, each in a process of its own, and serve the REST API.

    Jobs go on when the server ends, and the next one adopts them. Without this, the first detached job starts a server
    in the background, which ends a minute after the last of them.
    """
    from scavenger.control.service.stopping import stopped_by_signals

    given = Given(jobs, budget, budget_per_user)
    place = ListenAddress(host, port, tuple(allowed_host or ()), certificate, key) if api else None

    with stopped_by_signals() as stop:  # also while it starts, which takes seconds
        _serve_until(stop, given, place, store_url, pool)
    return 0


def _serve_until(
    stop: threading.Event,
    given: Given,
    place: ListenAddress | None,
    store_url: str | None,
    pools_file: Path | None,
) -> None:
    from scavenger import logs
    from scavenger.control.notifying.settings import notifying
    from scavenger.control.service.server import Server, configured_limits, configured_pools, run
    from scavenger.control.sweep import sweeping
    from scavenger.store import Store

    limits, pools = given.over(configured_limits()), configured_pools(pools_file)
    logs.set_up("server", logs.read_settings())
    with Store.open(store_url) as store, _api(store, place, limits) as address:
        before = store.budgets()
        if (budgets := given.budgets(before)) != before:
            store.set_budgets(budgets)

        def tell() -> None:
            console.note(f"serving the jobs in {store.name}; Ctrl-C ends the server, and its jobs go on")
            if line := _budget_line(budgets):
                console.note(line)

        with notifying(store, address=address, limits=limits, within_s=_LAST_S), sweeping(store):
            run(Server(store, limits, pools, address=address), stop, begun=tell)


def _budget_line(budgets: StoredBudgets) -> str:
    """Which budgets the store has; empty for none."""
    from scavenger.presentation.formatting import money

    given = (("--budget", budgets.budget_usd), ("--budget-per-user", budgets.user_budget_usd))
    found = [f"{option} {money(usd)}" for option, usd in given if usd is not None]
    if not found:
        return ""
    return f"budgets of a month, for all servers of the store: {', '.join(found)}; `none` in place of one removes it"


@contextmanager
def _api(store: Store, place: ListenAddress | None, limits: QueueLimits) -> Iterator[str]:
    """Serve the API within the block, and say where, with a token if this is the first start; yields its address."""
    if place is None:
        yield ""
        return
    try:
        from scavenger.server.serving import first_token, serving
        from scavenger.server.settings import ServerSettings
    except ModuleNotFoundError as error:
        console.note(
            f"no API, as {error.name} is missing: pip install 'scavenger-ml[server]' (or use --no-api)"
        )
        yield ""
        return
    settings = ServerSettings(place.host, place.port, place.allowed_hosts, place.certificate, place.key)
    with serving(store, settings, limits=limits) as address:
        console.note(f"the API is at {address}; `scavenger api token` makes a token")
        if (token := first_token(store)) is not None:
            # not through `note`, which masks tokens: this is the one time that it is shown
            console.write(sys.stderr, f"open {address}/login?token={token}\n")
            console.write(sys.stderr, "this token is shown once: it is stored as a digest\n")
        yield address
