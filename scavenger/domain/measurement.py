"""Measurements of one step, one epoch, one configuration and one whole run."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.domain.configuration import Configuration


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Measurements of one applied step.

    Attributes:
        step: Number of the optimizer update, from 1; never decreases.
        view: Number of the view in effect.
        epoch: 0-based.
        samples: Samples in the step; less than `global_batch_size` at the end of an epoch.
        step_time_s: Time from the previous publication of weights to this one.
        compute_s: Gradient computation of the slowest worker.
        sync_s: Time of the rest of the step: pushing, aggregating, applying, pulling.
        loss: Mean over the step's samples, before the update.
        mean_worker_sqnorm: Mean over workers of |g_k|^2, weighted by samples. With one worker, over the two halves
            of its batch.
        mean_sqnorm: |g|^2 of the sample-weighted mean gradient.
        noise_parts: Number of gradients that `mean_worker_sqnorm` averages: the workers, or 2 with one worker; 0 if
            the step had too few samples.
        disturbed: Whether the time of this step does not represent the configuration: the first steps of a view,
            a partial batch, or workers starting on the same machine.
        at_s: Seconds since the job began.
        gradient_noise: γ, smoothed up to this step at its configuration; None where unknown.
        noise_scale: φ, samples, smoothed up to this step; None where unknown.
    """

    step: int
    view: int
    epoch: int
    workers: int
    global_batch_size: int
    samples: int
    step_time_s: float
    compute_s: float
    sync_s: float
    loss: float
    mean_worker_sqnorm: float
    mean_sqnorm: float
    noise_parts: int
    disturbed: bool
    at_s: float
    gradient_noise: float | None = None
    noise_scale: float | None = None


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The evaluation at the end of an epoch.

    Attributes:
        epoch: 0-based.
        step: The last step of the epoch.
        metrics: Values by Keras's names; validation metrics begin with `val_`.
        evaluation_s: Time that training paused for the evaluation.
        at_s: Seconds since the job began.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    evaluation_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """The profile of one configuration.

    Attributes:
        steps: Number of undisturbed steps measured.
        step_time_s: Median step time.
        step_time_spread_s: Standard deviation of a single step's time, robust (1.4826 times the median absolute
            deviation).
        compute_s: Median of the slowest worker's gradient computation.
        sync_s: Median time of the rest of the step.
        gradient_noise: Smoothed γ, in [1, K] (at one worker, of two halves: in [1, 2]); None where unknown.
        noise_scale: Smoothed φ, samples; None where unknown.
        memory_bytes: Largest resident memory of a worker.
        progress: Share of the run that was done when `noise_scale` was read, in (0, 1]: epochs done over epochs
            expected; None where unknown.
    """

    configuration: Configuration
    steps: int
    step_time_s: float
    step_time_spread_s: float
    compute_s: float
    sync_s: float
    gradient_noise: float | None
    noise_scale: float | None
    memory_bytes: int
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class ConvergenceRecord:
    """A run of a job to its target, or to its end before it: training data of the statistical model.

    Attributes:
        global_batch_size: The B that most of its samples were trained with.
        epochs: Epochs until the target was reached, had all been trained at that B.
        every: Epochs from one evaluation to the next, at one of which the target was seen to be reached; 0 if unknown.
        log_sd: Standard deviation of ln of the epochs, of a run that missed its target: they are forecast from the
            course of its metric. 0 of one that reached it.
    """

    global_batch_size: int
    epochs: float
    every: float = 0.0
    log_sd: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The measurements that a job's models are fitted to.

    Attributes:
        dataset_size: Training samples D per epoch.
        evaluation_s: Evaluation time at the end of an epoch, by worker count: pairs (K, seconds).
        setup_s: Time from the launch of a worker until it is ready to join.
        validation_size: Samples of an evaluation; 0 if there is none.
        mean_over_median: Mean time of a step over the median, see `TrainingHistory.mean_over_median`; None if unknown.
        run_ratios: Step time in the run over that in its profile, of earlier jobs on such hardware.
        rerun_ratios: Step time in a run over that of the run of the same job before it, on such hardware.
        twice: The first measurement, and the same configuration at the end of the search; empty if it was not
            measured again.
    """

    measurements: tuple[Measurement, ...]
    dataset_size: int
    evaluation_s: tuple[tuple[int, float], ...] = ()
    setup_s: float = 0.0
    convergence: tuple[ConvergenceRecord, ...] = ()
    validation_size: int = 0
    mean_over_median: float | None = None
    run_ratios: tuple[float, ...] = ()
    rerun_ratios: tuple[float, ...] = ()
    twice: tuple[Measurement, ...] = ()
