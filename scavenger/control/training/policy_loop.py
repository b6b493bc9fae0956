"""The policy loop: shows policies snapshots of a running job and carries out their decisions."""

from __future__ import annotations

from collections.abc import Callable

from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.decision import Blacklist, ChangeSize, Hold, Pause, Replace, Stop
from scavenger.domain.snapshot import (
    ClusterSnapshot,
    Delays,
    JobCosts,
    JobLimits,
    JobSnapshot,
    Throughput,
    TrainingProgress,
)
from scavenger.errors import LimitReachedError, WorkersLostError
from scavenger.policy.base import Policy

LOOK_S = 1.0
"""Interval between two policy decisions: a policy sees many steps at once, and a change takes longer anyway."""


class PolicyLoop:
    """The policy loop of one job.

    Args:
        policy: Decides on changes.
        reference: The configuration on which the run was started.
        remaining_samples: Returns the expected number of samples until the goal; None if unknown.
        planned: Returns the configuration that the refitted models recommend, None if they were not asked, and why.
        balance: Called at each decision, to move buckets between aggregators.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        policy: Policy,
        reference: Configuration,
        remaining_samples: Callable[[], float | None],
        planned: Callable[[], tuple[Configuration | None, str]] = lambda: (None, ""),
        balance: Callable[[], None] = lambda: None,
    ) -> None:
        self._trainer, self._policy, self._reference = trainer, policy, reference
        self._remaining, self._planned, self._balance = remaining_samples, planned, balance
        self._blacklist: dict[str, float] = {}
        self._avoided: frozenset[str] = frozenset()
        self._looked_at = trainer.elapsed_s

    @property
    def due(self) -> bool:
        """Whether the next decision is due."""
        return self._trainer.elapsed_s - self._looked_at >= LOOK_S

    def run(self, operations: OperationHandler) -> None:
        """Train until training is finished, carrying out requested operations and the policy's decisions.

        Raises the errors of `look` and `Trainer.until`.
        """
        trainer = self._trainer
        operations.refusing = ""
        try:
            while not trainer.finished:
                trainer.until(lambda: operations.heard() or self.due)
                if trainer.finished:
                    break
                operations.carry_out(trainer)
                self.look()
        finally:
            operations.refusing = "training has ended"

    def look(self) -> None:
        """Ask the policy and carry out its decision; while there is no view, only which hosts are avoided.

        Raises:
            LimitReachedError: If the budget or deadline would be crossed, or no workers can be launched.
            WorkersLostError: If new workers keep failing.
        """
        trainer = self._trainer
        self._looked_at = trainer.elapsed_s
        if trainer.configuration is None:
            return
        if not trainer.supervisor.settled:
            if not trainer.supervisor.workers("training"):
                # no view comes before the first replacement, which must not be where the others have failed
                match self._policy.decide(self.snapshot()):
                    case Blacklist() as decision:
                        self._blacklist_hosts(decision)
            return
        self._balance()
        if at_risk := [
            name for name in sorted(trainer.at_risk) if name in trainer.supervisor.workers("training")
        ]:
            trainer.replace(at_risk, "the cloud says that they are at risk", kind="eviction")
            return
        trainer.follow_noise()
        self._avoid()
        match self._policy.decide(self.snapshot()):
            case Hold():
                pass
            case ChangeSize(workers, batch, reason):
                trainer.move(Configuration(trainer.offer.vm, workers, batch), reason)
            case Replace(workers, reason):
                trainer.note(f"{', '.join(workers)} replaced: {reason}")
                trainer.replace(workers, reason, kind="eviction")
            case Blacklist() as decision:
                self._blacklist_hosts(decision)
            case Pause(reason):
                raise LimitReachedError(f"paused: {reason}")
            case Stop(reason, "failures"):
                raise WorkersLostError(reason)
            case Stop(reason, "budget" | "deadline" as limit):
                raise LimitReachedError(reason, limit=limit)

    def _blacklist_hosts(self, decision: Blacklist) -> None:
        self._blacklist |= dict.fromkeys(decision.hosts, decision.until_s)
        self._avoid()
        self._trainer.note(decision.reason)

    def _avoid(self) -> None:
        """Make the engine avoid the blacklisted hosts, and use those again whose time has expired."""
        now = self._trainer.elapsed_s
        avoided = frozenset(host for host, until_s in self._blacklist.items() if until_s > now)
        if avoided != self._avoided:
            self._avoided = avoided
            self._trainer.supervisor.engine.avoid(avoided)

    def snapshot(self) -> JobSnapshot:
        """Snapshot of the job for policies; times include earlier attempts."""
        trainer = self._trainer
        assert trainer.configuration is not None
        planned, because = self._planned()
        return JobSnapshot(
            at_s=trainer.elapsed_s,
            configuration=trainer.configuration,
            reference=self._reference,
            progress=TrainingProgress(
                step=trainer.step,
                epoch=trainer.history.epochs[-1].epoch + 1 if trainer.history.epochs else 0,
                elapsed_s=trainer.elapsed_s,
                remaining_samples=self._remaining(),
            ),
            cluster=ClusterSnapshot(
                view=trainer.view,
                workers=trainer.worker_snapshots(),
                departures=tuple(trainer.history.departures),
                hosts=trainer.supervisor.engine.hosts,
                blacklist=tuple(self._blacklist.items()),
            ),
            costs=JobCosts(self._worker_usd_per_hour, trainer.shared_usd_per_hour, trainer.cost_usd),
            limits=JobLimits(trainer.limits.budget_usd, trainer.limits.deadline_s),
            delays=Delays(trainer.drain_s, LOOK_S, max(trainer.history.setup_s, default=0.0)),
            throughput=self._throughput(),
            planned=planned,
            planned_because=because,
        )

    @property
    def _worker_usd_per_hour(self) -> float:
        """Price of one worker: its share of a full VM."""
        offer = self._trainer.offer
        return self._trainer.workers_usd_per_hour(offer.vm, offer.workers_per_vm) / offer.workers_per_vm

    def _throughput(self) -> tuple[Throughput, ...]:
        return tuple(
            Throughput(configuration, samples / seconds, steps)
            for configuration, (steps, samples, seconds) in self._trainer.history.measured.items()
            if seconds > 0.0
        )
