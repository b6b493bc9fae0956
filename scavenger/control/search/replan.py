"""Replanning: refits the models during the run and recommends a configuration for the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from scavenger.control.search.outcome import progress_of
from scavenger.control.search.select import choose_now, switch_to, worth_from_now
from scavenger.control.training.measure import measure
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Infeasible
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.errors import ConfigurationError
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading
from scavenger.search.replan import worth_moving

STEP = 0.05
"""Share of the way to the target between two refits; the noise changes slowly over the run."""

READINGS_MAX = 64
"""Maximum number of noise readings kept: three per refit of a run as long as first predicted."""

Fit = Callable[[Sequence[Measurement], Sequence[NoiseReading] | None], JobModel]
"""Fits the models to measurements and noise readings; may raise `ConfigurationError`."""


class Replanning:
    """Replanning of one job; keeps the noise readings and the recommended configuration.

    Args:
        model: The model on which the choice was based.
        fit: Fits the models to measurements of this run and noise readings; None takes the noise of the
            measurements.
        outlook: Adds to a fitted model what the metric's course tells of the epochs.

    Attributes:
        planned: The configuration recommended by the newest fit; None if not asked since the last move.
        because: Why it is another than the present one; empty if it is not.
        reached: The newest configuration to which these models moved the job; None before such a move.
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
        outlook: Callable[[JobModel], JobModel] = lambda model: model,
    ) -> None:
        self._trainer, self._job, self._space, self._fit = trainer, job, space, fit
        self._fitted, self._outlook = model, outlook
        self.model, self._measured = model, {m.configuration: m for m in measurements}
        self._readings: list[NoiseReading] = []
        self._asked_at = progress_of(trainer, model)
        self._since = (trainer.configuration, trainer.step)
        self._failed = False
        self.planned: Configuration | None = None
        self.because = ""
        self.reached: Configuration | None = None

    def look(self) -> Configuration | None:
        """The recommended configuration; None if the models were not refitted since the job's last move.

        The epochs follow the metric's course, if `outlook` tells of it, so the share of the way that is behind may fall
        too. Refits once it has changed by `STEP`, since noise and steps change little in between, but not while a
        lost worker is being replaced. A recommendation is valid for the configuration at which it was given: if the job
        is moved elsewhere, it stays there until the next refit. It also expires if that many workers could not be kept
        alive. A failed fit does not end the run: the previous model stays in use.
        """
        trainer = self._trainer
        now = trainer.configuration
        if now != self._since[0]:
            self.reached = now if now == self.planned else self.reached
            self._since, self.planned = (now, trainer.step), None
        most = trainer.workers_max(trainer.elapsed_s)
        if self.planned is not None and most is not None and self.planned.workers > most:
            self.planned = None
        self._follow_course()
        progress = progress_of(trainer, self.model)
        if now is None or trainer.finished or abs(progress - self._asked_at) < STEP:
            return self.planned
        if now.workers != trainer.wanted:
            return self.planned
        self._asked_at = progress
        self._read(progress)
        self._measure(now)
        try:
            self._fitted = self._fit(tuple(self._measured.values()), self._readings or None)
        except ConfigurationError as error:
            if not self._failed:
                trainer.note(f"the models could not be refitted, so the job stays at {now}: {error}")
            self._failed = True
            return self.planned
        self.model = self._outlook(self._fitted)
        # The new model may assign another share of the way to the same steps.
        self._asked_at = progress_of(trainer, self.model)
        self.planned = self._decide(now)
        return self.planned

    def _follow_course(self) -> None:
        told = self._outlook(self._fitted)
        if told is not self._fitted and told is not self.model:
            self.model = told

    def _read(self, progress: float) -> None:
        history, now = self._trainer.history, self._trainer.configuration
        noise = history.noise
        assert now is not None
        if (
            noise.noise_scale is not None
            and noise.measured_at is not None
            and len(self._readings) < READINGS_MAX
        ):
            self._readings.append(
                NoiseReading(
                    progress=progress * min(1.0, noise.measured_at / max(history.step, 1)),
                    noise_scale=noise.noise_scale,
                    steps=float(max(now.workers - 1, 1)),
                    global_batch_size=float(now.global_batch_size),
                )
            )

    def _measure(self, now: Configuration) -> None:
        """Replace the measurement of the present configuration by one of the job's recent steps."""
        trainer = self._trainer
        window = trainer.history.window(now, self._since[1])
        if len(window) >= self._job.profile.steps and trainer.history.fits(now.local_batch_size):
            self._measured[now] = measure(now, window, trainer.history.noise, trainer.worker_memory_bytes())

    def _decide(self, now: Configuration) -> Configuration:
        trainer, job, model = self._trainer, self._job, self.model
        self.because = ""
        remaining = 1.0 - progress_of(trainer, model)
        # a running job stays on its VM type: VMs of another type would be paid for while they boot
        space = replace(self._space, offers=(self._space.offer(now.vm),))
        curve, choice = choose_now(model, trainer, space, job)
        if isinstance(choice, Infeasible):
            return now  # the limits end the job when they are reached
        switch, worth = switch_to(choice, trainer), worth_from_now(job, trainer)
        move = worth_moving(curve, choice, now, remaining=remaining, switch=switch, worth=worth)
        if move is None:
            return now
        self.because = f"{move.reason}; {move.effect}"
        trainer.note(
            f"refitted after {1.0 - remaining:.0%} of the way: {move.configuration} instead of {now}, as "
            f"{self.because}"
        )
        return move.configuration
