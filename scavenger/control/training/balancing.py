"""Moves buckets away from an aggregator that steps wait for longer than for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from scavenger.control.training.view_in_effect import VIEW_WARM_UP_STEPS
from scavenger.errors import ScavengerError
from scavenger.policy.bucket_balance import DEFAULT_RULES, Balance, BalanceRules, Measured, observe
from scavenger.train.supervisor.bucket_moves import Migrations
from scavenger.train.transport import messages as m


class Balancing:
    """Measures one job's aggregators, and moves what `scavenger.policy.bucket_balance` decides.

    Args:
        reports: Returns the last undisturbed steps that tell what they waited for each aggregator, oldest first.
        note: Called with the reason of each move.
        clock: Seconds.
        rules: When buckets move.
    """

    def __init__(
        self,
        migrations: Migrations,
        reports: Callable[[], Sequence[m.StepReport]],
        *,
        note: Callable[[str], None],
        clock: Callable[[], float],
        rules: BalanceRules = DEFAULT_RULES,
    ) -> None:
        self._migrations, self._reports, self._note, self._clock = migrations, reports, note, clock
        self._rules = rules
        self._balance, self._step = Balance(), 0

    def look(self) -> None:
        """Take what was measured since the last call, and begin a move if it is time for one; waits for nothing."""
        migrations, reports = self._migrations, self._reports()
        current = migrations.map
        if current is None or migrations.active or not reports:
            return
        # the first steps under another map touch memory and compile optimizers
        first = max(self._step, current.since + VIEW_WARM_UP_STEPS if current.number else 0)
        seen = measured([report for report in reports if report.step > first], self._clock())
        if seen is None:
            return
        self._step = reports[-1].step
        self._balance, move = observe(self._balance, seen, current.holders, migrations.sizes, self._rules)
        if move is None:
            return
        try:
            migrations.move(dict(enumerate(move.holders)))
        except ScavengerError as error:  # nothing depends on it
            self._note(f"{move.reason}, which fails: {error}")
        else:
            self._note(move.reason)


def measured(reports: Sequence[m.StepReport], at_s: float) -> Measured | None:
    """Return what was measured of the steps of the newest view; None if there are none.

    Args:
        reports: Steps with what they waited for each aggregator, oldest first.
        at_s: When they were taken, seconds.
    """
    newest = [report for report in reports if report.view == reports[-1].view]
    waits = [dict(report.aggregator_wait_s) for report in newest]
    common = set.intersection(*map(set, waits)) if waits else set()
    if not common:
        return None
    return Measured(
        at_s,
        newest[-1].view,
        median(report.step_time_s for report in newest),
        {index: median(wait[index] for wait in waits) for index in sorted(common)},
    )
