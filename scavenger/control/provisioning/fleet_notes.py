"""Messages to the user about a job's VMs, each shown once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from scavenger.domain.configuration import Offer
from scavenger.domain.intent import Intent
from scavenger.policy.provisioning.actions import Alarm
from scavenger.policy.provisioning.slots import is_for_aggregators

_OF_ALL = ("undeletable", "unknown_vm", "silence", "blind")
"""Alarms that concern every job of the region."""


class FleetNotes:
    """Passes alarms and shortages on to the user of one job.

    Args:
        note: Shows a warning to the user.
        offers: The VM types of the job.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        offers: Iterable[Offer],
        *,
        inform: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.note, self.inform = note, inform
        self._offers = {offer.vm: offer for offer in offers}
        self._sold_out_since: float | None = None
        self._alarms: deque[Alarm | str] = deque()
        self._shown: dict[str, str] = {}
        self._fallen_back: set[str] = set()

    def put(self, alarm: Alarm | str) -> None:
        """Queue an alarm, called on the reconciler's thread; `show_alarms` shows it."""
        self._alarms.append(alarm)

    def show_alarms(self, more: Iterable[str]) -> None:
        """Show the given messages, and the alarms that concern every job or a VM type of this job."""
        for text in more:
            self.note(text)
        while self._alarms:
            alarm = self._alarms.popleft()
            if isinstance(alarm, str) or alarm.kind in _OF_ALL:
                self.note(alarm if isinstance(alarm, str) else alarm.message)
            elif (
                alarm.kind == "credentials" and alarm.about != "launch"
            ):  # launches are a shortage of their own
                self.note(f"VMs cannot be seen or ended: {alarm.message}")
            elif (
                alarm.kind in ("quota", "refused", "spot_price")
                and set(alarm.about.split()) & self._offers.keys()
            ):
                self.note(alarm.message)

    def show_shortages(self, shortages: Mapping[str, str], wait_max: str) -> None:
        """Show new or changed shortages; a reached budget is not shown, since it ends the job.

        Args:
            shortages: Messages by kind.
            wait_max: Longest wait for what is sold out, in words.
        """
        for kind, message in shortages.items():
            if self._shown.get(kind) != message:
                self._shown[kind] = message
                if kind != "budget":
                    waiting = f"; waiting for at most {wait_max} (limits.vms)" if kind == "sold_out" else ""
                    self.note(f"{message}{waiting}")

    def sold_out_s(self, shortages: Mapping[str, str], now: float) -> float:
        """For how long VMs have been sold out without a break, as of `now`, monotonic seconds."""
        if "sold_out" not in shortages:
            self._sold_out_since = None
        elif self._sold_out_since is None:
            self._sold_out_since = now
        return 0.0 if self._sold_out_since is None else now - self._sold_out_since

    def show_fallbacks(self, intents: Iterable[Intent]) -> None:
        """Show, once per VM type, that an on-demand VM replaces an unavailable spot VM, with its price."""
        for intent in intents:
            offer = self._offers.get(intent.request.vm)
            if is_for_aggregators(intent.slot) or intent.state != "UP" or offer is None:
                continue
            if offer.spot and not intent.request.spot and offer.vm not in self._fallen_back:
                self._fallen_back.add(offer.vm)
                price = intent.charges.price_usd_per_hour
                self.note(
                    f"no spot VM of {offer.vm} was available: on demand at ${price:.6g} per hour "
                    f"instead of ${offer.price_usd_per_hour:.6g}, on which the predictions are based"
                )
