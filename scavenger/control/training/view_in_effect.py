"""The view under which a running job trains."""

from __future__ import annotations

from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import StepRecord
from scavenger.domain.report import ViewChanged
from scavenger.elastic.view import View

VIEW_WARM_UP_STEPS = 3
"""First steps of a view, whose times reflect cold caches and new shapes rather than the configuration."""


class ViewInEffect:
    """The newest view that has taken effect, and how many steps were done under it.

    Attributes:
        configuration: The configuration that it stands for; None before the first view.
        same_workers: Whether the view before it had the same workers: the batch size, or the rate, alone has changed.
        steps: Number of its steps so far.
        count: Number of views so far.
    """

    def __init__(self) -> None:
        self._body: View | None = None
        self.configuration: Configuration | None = None
        self.steps = self.count = 0
        self.same_workers = False

    @property
    def number(self) -> int:
        """Number of the view; 0 before the first."""
        return 0 if self._body is None else self._body.number

    @property
    def warming_up(self) -> bool:
        """Whether the newest step's time is not typical of the configuration."""
        return self.steps <= VIEW_WARM_UP_STEPS

    def installed(self, body: View, vm: str) -> bool:
        """Put a view into effect; returns False if it is no newer than the present one.

        Args:
            vm: The VM type of its workers.
        """
        if body.number <= self.number:
            return False
        before = () if self._body is None else self._body.members
        self.same_workers = [one.worker for one in before] == [one.worker for one in body.members]
        self._body, self.steps, self.count = body, 0, self.count + 1
        self.configuration = Configuration(vm, len(body.members), body.global_batch_size)
        return True

    def stepped(self) -> None:
        """Count a step."""
        self.steps += 1

    def change(self, first: StepRecord) -> ViewChanged | None:
        """Describe the change to this view; None unless its first step was just done.

        Args:
            first: That step: all of its time outside computation was spent waiting for the change.
        """
        if self.steps != 1 or self._body is None or self.configuration is None:
            return None
        body = self._body
        return ViewChanged(body.number, self.configuration, body.first_step, first.sync_s, body.reason)
