"""`serve`: run submitted jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scavenger.errors import ConfigurationError
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.policy.admission import QueueLimits

__all__ = ["Given", "serve_jobs"]


@dataclass(frozen=True, slots=True)
class Given:
    """Limits from the command line, which replace those of the settings file; None where one was not given."""

    jobs: int | None = None
    local_jobs: int | None = None
    budget: str | None = None
    budget_per_user: str | None = None

    def over(self, limits: QueueLimits) -> QueueLimits:
        """The limits with these in their place.

        Raises:
            ConfigurationError: If an amount of money cannot be read.
        """
        given: dict[str, Any] = {
            "jobs_max": self.jobs,
            "local_max": self.local_jobs,
            "budget_usd": _money("--budget", self.budget),
            "user_budget_usd": _money("--budget-per-user", self.budget_per_user),
        }
        return replace(limits, **{name: value for name, value in given.items() if value is not None})


def _money(option: str, text: str | None) -> float | None:
    from scavenger.domain.forms import parse_money

    try:
        return None if text is None else parse_money(f"${text.removeprefix('$')}")
    except ValueError as error:
        raise ConfigurationError(f"{option} {error}") from None


def serve_jobs(given: Given, *, store_url: str | None) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        ConfigurationError: An option or the settings file is invalid.
        TransientError: Another server serves this store.
    """
    from scavenger import logs
    from scavenger.control.service.server import Server, configured_limits, serve
    from scavenger.store import Store

    limits = given.over(configured_limits())
    logs.set_up("server", logs.read_settings())
    with Store.open(store_url) as store:
        console.note(f"serving the jobs in {store.name}; Ctrl-C ends the server, and its jobs go on")
        serve(Server(store, limits))
    return 0
