"""Asks again during the run what the models, fitted to all that is known by now, would run on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from scavenger.control.search.outcome import progress_of
from scavenger.control.search.select import choose_now
from scavenger.control.training.measure import measure
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Infeasible
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.errors import ConfigurationError
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading
from scavenger.search.replan import Switch, worth_moving

__all__ = ["Replanning"]

STEP = 0.05
"""Share of the way to the target between two refits: noise grows over the run, not from one step to the next."""

READINGS_MAX = 64
"""Of the noise: three for each refit of a way that stays as long as it was predicted first."""

Fit = Callable[[Sequence[Measurement], Sequence[NoiseReading] | None], JobModel]
"""May raise `ConfigurationError`."""


class Replanning:
    """One job's: remembers what the noise was, and what it would be run on.

    Args:
        space: That the search was over.
        model: By which the choice was made.
        fit: The models from measurements of this run and readings of the noise; None takes those of the
            measurements.
        measurements: Of the search.

    Attributes:
        model: The newest that was fitted.
        reached: The newest configuration that the job was brought to by these models; None before.
    """

    def __init__(
        self,
        trainer: Trainer,
        job: JobSpec,
        space: SearchSpace,
        *,
        model: JobModel,
        fit: Fit,
        measurements: Sequence[Measurement],
    ) -> None:
        self._trainer, self._job, self._space, self._fit = trainer, job, space, fit
        self.model, self._measured = model, {m.configuration: m for m in measurements}
        self._readings: list[NoiseReading] = []
        self._asked_at = progress_of(trainer, model)
        self._since = (trainer.configuration, trainer.step)
        self._failed = False
        self.planned: Configuration | None = None
        self.reached: Configuration | None = None

    def look(self) -> Configuration | None:
        """What the job should run on by all that is known; None where it was not asked since the job came here.

        Refits when the job has come `STEP` of its way further, and only then, as noise and steps say little more
        before; not while a lost worker is being replaced. An answer holds for the configuration that it was given
        at: wherever somebody else has brought the job, it stays until the next one. Nor does it hold any longer where
        so many workers could not be kept alive. A fit that fails ends no run: what was known before goes on to count.
        """
        trainer = self._trainer
        now = trainer.configuration
        if now != self._since[0]:
            self.reached = now if now == self.planned else self.reached
            self._since, self.planned = (now, trainer.step), None
        most = trainer.workers_max
        if self.planned is not None and most is not None and self.planned.workers > most:
            self.planned = None
        progress = progress_of(trainer, self.model)
        if now is None or trainer.finished or progress < self._asked_at + STEP:
            return self.planned
        if now.workers != trainer.wanted:
            return self.planned
        self._asked_at = progress
        self._read(progress)
        self._measure(now)
        try:
            self.model = self._fit(tuple(self._measured.values()), self._readings or None)
        except ConfigurationError as error:
            if not self._failed:
                trainer.note(f"the job stays at {now}, as it was chosen: {error}")
            self._failed = True
            return self.planned
        # By the new model the same steps may be another share of the way.
        self._asked_at = progress_of(trainer, self.model)
        trainer.progress = lambda: progress_of(trainer, self.model)
        self.planned = self._decide(now)
        return self.planned

    def _read(self, progress: float) -> None:
        noise, now = self._trainer.history.noise, self._trainer.configuration
        assert now is not None
        if noise.noise_scale is not None and len(self._readings) < READINGS_MAX:
            self._readings.append(
                NoiseReading(
                    progress=progress,
                    noise_scale=noise.noise_scale,
                    steps=float(max(now.workers - 1, 1)),
                    global_batch_size=float(now.global_batch_size),
                )
            )

    def _measure(self, now: Configuration) -> None:
        """What the job runs at counts instead of what the search, or an earlier stay, measured of it."""
        trainer = self._trainer
        window = trainer.history.window(now, self._since[1])
        if len(window) >= self._job.profile.steps:
            self._measured[now] = measure(now, window, trainer.history.noise, trainer.worker_memory_bytes())

    def _decide(self, now: Configuration) -> Configuration:
        trainer, job, model = self._trainer, self._job, self.model
        remaining = 1.0 - progress_of(trainer, model)
        # a job that trains stays on its type of VM: another would have to be paid for while all its VMs boot
        space = replace(self._space, offers=(self._space.offer(now.vm),))
        curve, choice = choose_now(model, trainer, space, job)
        if isinstance(choice, Infeasible):
            return now  # the limits themselves end the job when it comes to that
        missing = max(0, choice.configuration.workers - trainer.ready_on(now.vm))
        setup_s = statistics.median(trainer.setup_s) if missing and trainer.setup_s else 0.0
        # Training goes on meanwhile: what is lost is the gain, for as long as new workers start, and their pay, unless
        # the curve has counted it.
        pay_usd = missing * setup_s * trainer.offer.price_usd_per_hour / 3600.0
        switch = Switch(0.0, 0.0 if choice.point.setup_s else pay_usd)
        utility, elapsed_s = job.utility, trainer.elapsed_s
        worth = None if utility is None else (lambda left_s: utility.worth_at(elapsed_s + left_s))
        move = worth_moving(curve, choice, now, remaining=remaining, switch=switch, worth=worth)
        if move is None:
            return now
        trainer.note(
            f"refitted after {1.0 - remaining:.0%} of the way: {move.configuration} instead of {now}, as "
            f"{move.reason}; it saves {move.saved_s:.3g} s and ${move.saved_usd:.3g} of what is left"
        )
        return move.configuration
