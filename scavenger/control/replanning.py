"""Asks again during the run what the models, fitted to all that is known by now, would run on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from scavenger.control.deciding import choose_now
from scavenger.control.measuring import measure
from scavenger.control.outcome import progress_of
from scavenger.control.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Infeasible
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading
from scavenger.search.replan import Switch, worth_moving

__all__ = ["Replanning"]

STEP = 0.05
"""Share of the way to the target between two refits: noise grows over the run, not from one step to the next."""

READINGS_MAX = 64
"""Of the noise, evenly over what has been gone: the share of the way is never passed twice."""

Fit = Callable[[Sequence[Measurement], Sequence[NoiseReading]], JobModel]


class Replanning:
    """One job's: remembers what the noise was, and what it would be run on.

    Args:
        space: That the search was over.
        model: By which the choice was made.
        fit: The models from measurements of this run and readings of the noise.
        measurements: Of the search.
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
        self._model, self._measurements = model, tuple(measurements)
        self._readings: list[NoiseReading] = []
        self._asked_at = progress_of(trainer, model)
        self._since = (trainer.configuration, trainer.step)
        self.planned: Configuration | None = None

    def look(self) -> Configuration | None:
        """What the job should run on by all that is known; None where it was not asked yet.

        Refits when the job has come `STEP` of its way further, and only then, as noise and steps say little more
        before.
        """
        trainer = self._trainer
        now = trainer.configuration
        if now != self._since[0]:
            self._since = (now, trainer.step)
        progress = progress_of(trainer, self._model)
        if now is None or trainer.finished or progress < self._asked_at + STEP:
            return self.planned
        self._asked_at = progress
        self._read(progress)
        self._model = self._fit(self._measured(now), self._readings)
        trainer.progress = lambda: progress_of(trainer, self._model)
        self.planned = self._decide(now)
        return self.planned

    def _read(self, progress: float) -> None:
        noise, now = self._trainer.course.noise, self._trainer.configuration
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

    def _measured(self, now: Configuration) -> tuple[Measurement, ...]:
        """What the search measured, and where the job has run since, what it runs at."""
        trainer = self._trainer
        window = trainer.course.window(now, self._since[1])
        if len(window) < self._job.profile.steps:
            return self._measurements
        live = measure(now, window, trainer.course.noise, trainer.worker_memory_bytes())
        return (*(m for m in self._measurements if m.configuration != now), live)

    def _decide(self, now: Configuration) -> Configuration:
        trainer, job, model = self._trainer, self._job, self._model
        remaining = 1.0 - progress_of(trainer, model)
        curve, choice = choose_now(model, trainer, self._space, job)
        if isinstance(choice, Infeasible):
            return now  # the limits themselves end the job when it comes to that
        missing = max(0, choice.configuration.workers - trainer.crew.ready)
        setup_s = statistics.median(trainer.setup_s) if missing and trainer.setup_s else 0.0
        # Training goes on meanwhile: what is lost is the gain, for as long as new workers start, and their pay.
        switch = Switch(0.0, missing * setup_s * trainer.offer.price_usd_per_hour / 3600.0)
        worth = None if job.utility is None else job.utility.worth_at
        move = worth_moving(curve, choice, now, remaining=remaining, switch=switch, worth=worth)
        if move is None:
            return now
        trainer.note(
            f"refitted after {1.0 - remaining:.0%} of the way: {move.configuration} instead of {now}, as "
            f"{move.reason}; it saves {move.saved_s:.3g} s and ${move.saved_usd:.3g} of what is left"
        )
        return move.configuration
