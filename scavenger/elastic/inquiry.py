"""What the deaths of workers in a step say about its samples; see `scavenger.elastic.quarantine`."""

from __future__ import annotations

from collections.abc import Sequence

from scavenger.elastic import quarantine as q
from scavenger.elastic.steps import Death, Despair, Instruction, QuarantineSamples
from scavenger.elastic.view import Piece, Share, View, step_range


class Inquiry:
    """Distinguishes bad data from bad machines for the sequencer.

    Args:
        suspects: The suspected samples; None to disable the quarantine.
        dataset_size: Training samples per epoch.
    """

    def __init__(self, suspects: q.Suspects | None, dataset_size: int) -> None:
        self._suspects, self._dataset_size = suspects, dataset_size

    @property
    def open(self) -> bool:
        """Whether workers have died of samples that are not identified yet."""
        return self._suspects is not None and self._suspects.any

    def passed(self, view: View, step: int, share: Share) -> None:
        """Note that a piece of a step was computed."""
        if self._suspects is not None and self._suspects.any:
            self._suspects.passed(self._suspect(view, step, share))

    def into(self, view: View, step: int, death: Death, outstanding: Sequence[Piece]) -> list[Instruction]:
        """Check whether a worker died of the samples of a step that it was computing."""
        if self._suspects is None or not outstanding:
            return []
        if len(outstanding) > 1:
            # results of the first ones may be lost with the worker, so any of them may be the cause
            if death.cause.blames_data:
                for piece in outstanding:
                    self._suspects.watch(self._suspect(view, step, piece.share))
            return []
        share = outstanding[0].share
        finding = self._suspects.crashed(
            death.worker, death.host, self._suspect(view, step, share), step, death.cause, hosts=death.hosts
        )
        match finding:
            case q.Quarantined():
                return [QuarantineSamples(finding.piece, finding.reason)]
            case q.NotTheData():
                return [Despair(finding.reason)]
            case _:
                return []

    def apart(self, view: View, step: int, shares: Sequence[Share]) -> list[tuple[Share, bool]]:
        """Return the parts of shares of a step that are to be computed, and whether each has to be computed alone."""
        if self._suspects is None:
            return [(share, False) for share in shares]
        cut = [part for share in shares for part in self._suspects.cut(self._suspect(view, step, share))]
        return [(Share(part.start, part.stop), self._suspects.watches(part)) for part in cut]

    def _suspect(self, view: View, step: int, share: Share) -> q.SampleRange:
        """A share of a step as a piece of the data."""
        epoch = step_range(view, step, self._dataset_size).epoch
        return q.SampleRange(epoch, share.start, share.stop)
