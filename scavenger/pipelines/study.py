"""`Study`: trials of one search over hyperparameters, which share models, warm workers and a budget."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from scavenger.control.provisioning.kept_place import KEEPER_NAME
from scavenger.control.provisioning.kept_vms import KeptVms
from scavenger.domain.forms import parse_duration
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import EpochEnded, Event, Observer
from scavenger.errors import ConfigurationError, LimitReachedError, ScavengerError
from scavenger.pipelines.budget import Allowance, Budget, dollars
from scavenger.pipelines.job import Job
from scavenger.pipelines.job_runner import JobRunner, StudyTerms
from scavenger.pipelines.results import Run, Table
from scavenger.pipelines.sharing import WorkerShares, settings_within
from scavenger.pipelines.trial import PRUNED, Trial, trial_key, trial_of, union_s
from scavenger.presentation.formatting import (
    clean,
    difference,
    duration,
    durations,
    money,
    moneys,
    plural,
    quantity,
)
from scavenger.scheduler.jobs.seeing import sizes_of
from scavenger.store.operations import KEPT
from scavenger.store.records import LIVE_STATES

if TYPE_CHECKING:
    from scavenger.control.jobs.pool_seat import PoolSeat
    from scavenger.store.records import JobRecord

__all__ = ["PRUNED", "Study", "Trial", "trial_key", "union_s"]


class Study:
    """Trials of a search over hyperparameters; `Client.study` makes one.

    Every trial is a job of the study's name, so the store has all of it: a study whose program was killed goes on,
    with the trials that are done and the money that is spent. The first trial profiles; later ones with the same
    architecture use its model, and others begin with the nearest. On this machine their processes are forked by a
    server that stays. `run` may be called from several threads; each trial has what the budget leaves at its begin.

    Args:
        client: Runs the trials.
        name: The study's name: lower-case letters, digits and hyphens.
        budget: US dollars for all trials.
        deadline: Their longest time, as `8h` or seconds; the time in which none runs does not count.
        at_once: How many trials share what is left of the budget, if they run at once; those of other programs, which
            were running when this one first looked, are among them, with all that they may cost.
        workers: The most that trials which run at once have together; None if each has its own. A trial that begins has
            a share of them, for which others give some back, and those of an ended trial are given to the others, up to
            the most of `search.workers`. So it, and no policy, decides on a trial's workers after its choice. Of jobs
            of a server its pool does so, with at most so many slots for all of them.
        keep_vms: How long a VM that a trial leaves waits for the next one, as `3m` or seconds, paid for by the study's
            budget; 0: each trial rents its own, as those of a server do.

    Raises:
        ConfigurationError: If budget or deadline is no amount, or `workers` is not at least 1.
    """

    def __init__(
        self,
        client: JobRunner,
        name: str,
        *,
        budget: str | float | None = None,
        deadline: str | float | None = None,
        at_once: int = 1,
        workers: int | None = None,
        keep_vms: str | float = 0.0,
    ) -> None:
        if workers is not None and workers < 1:
            raise ConfigurationError(f"a study's workers= is at least 1, not {workers}")
        self.name, self.at_once, self.workers = name, at_once, workers
        self.shares = None if workers is None or client.by_server else WorkerShares(name, workers)
        self._client = client
        self._budget_usd, self._deadline_s = dollars(budget), _seconds(deadline, "deadline")
        self._kept = KeptVms(name, _seconds(keep_vms, "keep_vms") or 0.0)
        client.keep(self._kept)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    # ---- trials --------------------------------------------------------------------------------------------

    def run(
        self,
        job: Job,
        params: Mapping[str, Any] | None = None,
        *,
        on_epoch: Callable[[EpochRecord], bool] | None = None,
        observer: Observer | None = None,
    ) -> Trial:
        """Run one trial to its end, or return it from the record if it is over. A trial that fails is returned, too.

        Args:
            job: The job of which it is a trial.
            params: Arguments for its function, in addition to the job's.
            on_epoch: Called after each evaluation, on the thread that runs the job; returns whether the trial is not
                worth its rest. It then stops at the next step, and saves nothing.
            observer: Receives what happens.

        Raises:
            LimitReachedError: If nothing is left of the study's budget or time.
            ConfigurationError: If the job is not valid.
        """
        made = self._job(job, params or {})
        opened = self._open()
        key = trial_key(made.spec.written())
        with self._lock:
            before = opened.trials.get(key)
        if before is not None and before.over:
            return before
        # one that was stopped would go on with the limit that stopped it
        resumes = before is not None and before.state != "stopped"
        with self._seated(made) as seat:
            return self._run(made, key, opened, before if resumes else None, on_epoch, observer, seat)

    @contextmanager
    def _seated(self, job: Job) -> Iterator[PoolSeat | None]:
        """Wait for workers if trials of this program share them; gives what keeps a job to its own."""
        if self.shares is None:
            yield None
            return
        thread, client, by = threading.get_ident(), self._client, self.shares.name
        with self.shares.share(sizes_of(job.spec), lambda share: client.give(thread, share, by)) as seat:
            yield seat

    def _run(
        self,
        job: Job,
        key: str,
        opened: _Opened,
        before: Trial | None,
        on_epoch: Callable[[EpochRecord], bool] | None,
        observer: Observer | None,
        seat: PoolSeat | None,
    ) -> Trial:
        self._look_again(opened)
        at_once = self.at_once - opened.elsewhere
        job_id = str(uuid.uuid4()) if before is None else before.id
        terms = StudyTerms(self._kept, self._budget_usd, self.workers, seat)
        with (
            opened.budget.allowance(job.spec.constraints.budget, at_once=at_once) as allowance,
            self._client.claimed(self.name, job_id, self._budget_usd, allowance.usd) as most_usd,
            opened,
            self._kept.trial(),
        ):
            opened.mine[job_id] = 0.0 if before is None else before.cost_usd
            changes: dict[str, Any] = {"constraints.budget": most_usd}
            if self.workers is not None and seat is None:
                changes |= settings_within(job.spec, self.workers)
            if (left_s := self.left_s) < math.inf:
                changes["constraints.deadline"] = min(left_s, job.spec.constraints.deadline or math.inf)
            watched = _Watched(on_epoch, self._client, observer)
            opened.begun.append(terms.begun)
            trial: Trial | None = None
            try:
                trial = self._ran(job.with_settings(changes), job_id, before, watched, terms)
                return trial
            finally:  # also of one that Ctrl-C ended
                self._count(allowance, opened, key, before, trial, terms.begun)

    def _count(
        self,
        allowance: Allowance,
        opened: _Opened,
        key: str,
        before: Trial | None,
        trial: Trial | None,
        begun: Sequence[str],
    ) -> None:
        """Count what a trial has cost, and note what it came to.

        Args:
            before: What had been of it when it went on.
            trial: What it came to; None if an exception ended it.
            begun: The ids of its jobs.
        """
        if trial is None:
            allowance.cost_usd = None if begun else 0.0  # unknown, if it cannot be read
            with suppress(ScavengerError):
                trial = self._on_record(begun)
        if trial is not None:
            spent_usd = before.cost_usd if before is not None and trial.id == before.id else 0.0
            allowance.cost_usd = max(0.0, trial.cost_usd - spent_usd)
            with self._lock:
                opened.trials[key] = trial

    def _on_record(self, begun: Sequence[str]) -> Trial | None:
        """The trial of the last of these jobs if that has ended; None if there is none."""
        for record in self._client.records(self.name) if begun else ():
            if record.id == begun[-1] and record.state not in LIVE_STATES:
                return replace(self._known(record, self._client.cost_of(record.id)), known=False)
        return None

    def _ran(
        self, job: Job, job_id: str, before: Trial | None, observer: Observer, terms: StudyTerms
    ) -> Trial:
        if before is not None:
            limits = job.spec.constraints
            try:
                run = self._client.resume(
                    before.id,
                    observer=observer,
                    budget=limits.budget,
                    deadline_s=limits.deadline,
                    terms=terms,
                )
                return self._trial(run, job.params)
            except (ConfigurationError, LimitReachedError):
                # it has no checkpoint, or its server would have it cost more: it begins again, as another job
                job_id = str(uuid.uuid4())
                self._open().mine[job_id] = 0.0
        run = self._client.attempt(job, observer=observer, job_id=job_id, terms=terms)
        return self._trial(run, job.params)

    def _trial(self, run: Run, params: Mapping[str, Any]) -> Trial:
        try:
            cost_usd = self._client.cost_of(run.id) or run.cost_usd
        except ScavengerError:  # its report has it, too
            cost_usd = run.cost_usd
        return trial_of(run, params, cost_usd)

    def find(self, job: Job, params: Mapping[str, Any] | None = None) -> Trial | None:
        """The trial that `run` would return from the record; None if it would run one.

        Args:
            job: As of `run`.
            params: As of `run`.
        """
        opened, key = self._open(), trial_key(self._job(job, params or {}).spec.written())
        with self._lock:
            found = opened.trials.get(key)
        return found if found is not None and found.over else None

    def _job(self, job: Job, params: Mapping[str, Any]) -> Job:
        changes: dict[str, Any] = {"name": self.name}
        job = self._client.tracked(job)
        if job.spec.search.strategy == "auto":
            changes["search.strategy"] = "reuse"
        if job.spec.trackers is not None and job.spec.trackers.group is None:
            changes["trackers.group"] = self.name
        return job.with_settings(changes).with_params(**params)

    def close(self) -> None:
        """End the VMs that wait for another trial; `Client.close` does, too. Trials may follow, on VMs of their own."""
        self._kept.close()

    # ---- the record ----------------------------------------------------------------------------------------

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials so far, in the order of their first attempts."""
        opened = self._open()
        with self._lock:
            return tuple(opened.trials.values())

    def best(self, direction: str = "max") -> Trial:
        """The complete trial with the best value of the goal's metric.

        Args:
            direction: `max` or `min`.

        Raises:
            ConfigurationError: If there is none.
        """
        found = [(trial.value, trial) for trial in self.trials if trial.complete and trial.value is not None]
        if not found:
            raise ConfigurationError(f"study {self.name} has no complete trial yet")
        return (max if direction == "max" else min)(found, key=lambda one: one[0])[1]

    @property
    def spent_usd(self) -> float:
        """What all trials have cost, and VMs that waited between them."""
        return self._open().budget.spent_usd

    @property
    def waited_usd(self) -> float:
        """What of it VMs have cost that waited between trials."""
        return self._open().waited_usd + self._kept.spent_usd

    @property
    def left_usd(self) -> float:
        """What is neither spent nor set aside for running trials; infinite without a budget."""
        return self._open().budget.left_usd

    @property
    def left_s(self) -> float:
        """What is left of the deadline; infinite without one."""
        used_s = self._open().used_s
        left_s = math.inf if self._deadline_s is None else self._deadline_s - used_s
        if left_s <= 0.0:
            raise LimitReachedError(
                f"the time of study {self.name} is used up: its trials took {duration(used_s)} of "
                f"{duration(self._deadline_s)}; raise the deadline"
            )
        return left_s

    def _open(self) -> _Opened:
        with self._lock:
            if self._opened is None:
                self._opened = self._read()
            return self._opened

    def _read(self) -> _Opened:
        """The trials on record: one for each set of arguments, the newest attempt; all count."""
        opened = _Opened()
        records = self._note(opened)
        spent_usd = math.fsum(opened.others.values())
        used_s = union_s((record.created_at, record.ended_at or record.heartbeat_at) for record in records)
        waiting = self._client.records(KEEPER_NAME)
        waited_usd = math.fsum(
            self._client.cost_of(record.id) for record in waiting if record.spec.get(KEPT) == self.name
        )
        budget = Budget(self._budget_usd, spent_usd + waited_usd)
        kept, client = self._kept, self._client

        def budgeted(waited_usd: float, more_usd: float, returned_usd: float) -> bool:
            mine = budget.wait_for(kept, waited_usd, more_usd, returned_usd=returned_usd)
            return client.wait_for(kept, waited_usd, more_usd if mine else 0.0, returned_usd) and mine

        kept.budgeted = budgeted
        opened.budget, opened.used_before_s, opened.waited_usd = budget, used_s, waited_usd
        return opened

    def _note(self, opened: _Opened) -> list[JobRecord]:
        """Note the trials of other programs and of earlier ones, and what they cost; returns all on record.

        Of a live one, all that it may cost is set aside.
        """
        records = sorted(self._client.records(self.name), key=lambda record: record.created_at)
        mine = opened.mine | {job_id: 0.0 for begun in opened.begun for job_id in begun}
        mine |= opened.mine  # what went on, had cost something before
        opened.elsewhere = 0
        for record in records:
            if record.id in mine:
                opened.others[record.id] = mine[record.id]
                continue
            if record.id in opened.ended:
                continue
            cost_usd = self._client.cost_of(record.id)
            if record.state in LIVE_STATES:
                opened.elsewhere += 1
                cost_usd = max(cost_usd, record.spec.get("constraints", {}).get("budget") or 0.0)
            else:
                opened.ended.add(record.id)
                opened.trials[trial_key(record.spec)] = self._known(record, cost_usd)
            opened.others[record.id] = cost_usd
        return records

    def _look_again(self, opened: _Opened) -> None:
        """Look what other programs have spent since, and have set aside: a budget is that of all of them."""
        with self._lock:
            self._note(opened)
            opened.budget.spent_before(math.fsum(opened.others.values()) + opened.waited_usd)

    def _known(self, record: JobRecord, cost_usd: float) -> Trial:
        params = record.spec.get("params", {})
        try:
            return trial_of(self._client.result(record.id), params, cost_usd, known=True)
        except ScavengerError:  # its program was killed before it had a report
            took_s = ((record.ended_at or record.heartbeat_at) - record.created_at).total_seconds()
            return Trial(
                record.id, params, "interrupted", None, cost_usd, took_s, 0, None, record.error, known=True
            )

    # ---- what it shows -------------------------------------------------------------------------------------

    @property
    def bill(self) -> Table:
        """What each trial came to and cost, with what was predicted."""
        rows = []
        times = durations([trial.time_s for trial in self.trials])
        waited_usd = self.waited_usd
        *costs, waited = moneys([*(trial.cost_usd for trial in self.trials), waited_usd])
        predicted = moneys([trial.predicted_usd for trial in self.trials])
        for number, trial in enumerate(self.trials):
            said = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
            rows.append(
                (
                    f"{number}  {clean(said)}",
                    PRUNED if trial.pruned else trial.state.replace("_", " "),
                    quantity(trial.value),
                    str(trial.profiled),
                    times[number],
                    predicted[number],
                    costs[number],
                )
            )
        if waited_usd > 0.0:
            rows.append(("VMs between trials", "", "", "", "", "", waited))
        return Table(("trial", "state", "value", "profiled", "time", "predicted", "cost"), tuple(rows))

    def __str__(self) -> str:
        return f"{self.bill}\n{self._summary()}"

    def _repr_html_(self) -> str:
        return f"{self.bill._repr_html_()}<div>{self._summary()}</div>"

    def _summary(self) -> str:
        of = "" if self._budget_usd is None else f" of {money(self._budget_usd)}"
        done = [trial for trial in self.trials if trial.complete and trial.predicted_usd is not None]
        text = (
            f"Study {clean(self.name)}: {plural(len(self.trials), 'trial')} for {money(self.spent_usd)}{of}"
        )
        if done:
            predicted = math.fsum(trial.predicted_usd or 0.0 for trial in done)
            actual = math.fsum(trial.cost_usd for trial in done)
            text += (
                f"; complete ones predicted for {money(predicted)}, off by {difference(predicted, actual)}"
            )
        return text


class _Opened:
    """What a study has read of its record, and has added since.

    Attributes:
        budget: Its budget.
        trials: By what makes a trial another one.
        used_before_s: Time in which trials ran until now.
        elsewhere: How many trials of other programs run.
        waited_usd: What VMs had cost that waited, when it was opened.
        others: Cost of jobs on record, without what this program has added, by id; see `Study._note`.
        ended: Those of them that cost no more.
        mine: What jobs of this program had cost before it had them go on; 0 for those that it began.
        begun: Ids of jobs of its trials; see `StudyTerms`.
    """

    def __init__(self) -> None:
        self.budget, self.waited_usd, self.used_before_s, self.elsewhere = Budget(None), 0.0, 0.0, 0
        self.trials: dict[str, Trial] = {}
        self.others: dict[str, float] = {}
        self.ended: set[str] = set()
        self.mine: dict[str, float] = {}
        self.begun: list[Sequence[str]] = []
        self.running: dict[int, datetime] = {}
        self._since: datetime | None = None
        self._lock = threading.Lock()

    @property
    def used_s(self) -> float:
        """Time in which a trial ran, up to now."""
        since = self._since
        return self.used_before_s + (0.0 if since is None else (datetime.now(UTC) - since).total_seconds())

    def __enter__(self) -> None:
        now = datetime.now(UTC)
        with self._lock:
            if not self.running:
                self._since = now
            self.running[threading.get_ident()] = now

    def __exit__(self, *_: object) -> None:
        with self._lock:
            used_s = self.used_s
            del self.running[threading.get_ident()]
            if not self.running:
                self.used_before_s, self._since = used_s, None


class _Watched(Observer):
    """Asks after each epoch whether the trial is worth its rest, and stops it if not."""

    def __init__(
        self, on_epoch: Callable[[EpochRecord], bool] | None, client: JobRunner, observer: Observer | None
    ) -> None:
        self._on_epoch, self._client, self._observer = on_epoch, client, observer
        self._thread = threading.get_ident()

    def on_event(self, event: Event) -> None:
        """See `Observer`."""
        if self._observer is not None:
            self._observer.on_event(event)
        if isinstance(event, EpochEnded) and self._on_epoch is not None and self._on_epoch(event.record):
            self._client.stop_job(self._thread, PRUNED, save=False)


def _seconds(given: str | float | None, what: str) -> float | None:
    try:
        return given if given is None or given == 0 else parse_duration(given)
    except ValueError as error:
        raise ConfigurationError(f"{what} {error}", key=what) from error


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}={_short(one)}" for name, one in value.items()) + "}"
    return quantity(value) if isinstance(value, float) else str(value)
