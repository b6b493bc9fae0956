"""What a command job runs, and what each of its processes is started with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scavenger.domain.command import RunSpec, fill
from scavenger.train.command import messages as cm
from scavenger.train.command.checkpoints import CommandCheckpoint
from scavenger.train.command.progress import AttemptProcesses
from scavenger.train.command.rendezvous import rendezvous
from scavenger.train.custom_loop.reports import LOSS
from scavenger.train.job_source import JobSource
from scavenger.train.training_folder import digest_of, programs
from scavenger.train.transport.messages.values import Manifest, TensorSpec

_OWN = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
"""Variables that processes of Scavenger get of it, and a command as the user has set them."""


@dataclass(frozen=True, slots=True)
class CommandSource:
    """The command of a job.

    Attributes:
        run: As the job file has it.
        job: Of the processes of its hosts; it runs in the job's folder, and params are placeholders, too.
        epochs: `goal.max_epochs`.
        metric: `goal.metric`; empty if there is none.
        judged: Whether the goal has a target, which is judged by the metric.
        give_up: `elastic.failures.give_up`.
        environ: The environment of the user's command, besides that of the job.
        carry_every_s: How often the folder of a command that does not report is stored, where it is carried.
    """

    run: RunSpec
    job: JobSource
    epochs: int
    metric: str = ""
    judged: bool = False
    give_up: int = 5
    environ: Mapping[str, str] = field(default_factory=lambda: own_environment())
    carry_every_s: float = 0.0

    def order(
        self,
        group: AttemptProcesses,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        checkpoint_dir: str,
        held: CommandCheckpoint | None,
        *,
        threads: int = 0,
        storage: str = "",
    ) -> cm.StartProgram:
        """The order that starts one process of a group.

        Args:
            addresses: Host and free port of each, in the order of the members.
            checkpoint_dir: The folder of checkpoints, on the machine of the process.
            held: The checkpoint that the command goes on from, as far as it is known.
            threads: Threads of the process, if that is known.
            storage: Where a carried folder is stored; empty if it is not carried.
        """
        batch, workers = group.global_batch_size, len(group.members)
        local = batch // workers + (rank < batch % workers)
        values = {
            "local_batch_size": local,
            "global_batch_size": batch,
            "workers": workers,
            "rank": rank,
            "checkpoint_dir": checkpoint_dir,
            "epochs": self.epochs,
            "seed": self.job.seed,
            "threads": threads or self.job.threads,
            "lr_scale": f"{group.lr_scale:g}",
            "master": "{}:{}".format(*addresses[0]),
        }
        own = {name: value for name, value in {**self.environ, **self.job.env}.items() if name in _OWN}
        env = {
            **rendezvous(addresses, rank, f"{self.job.job_id[:8] or 'job'}-{group.view}"),
            **{f"SCAVENGER_{name.upper()}": str(value) for name, value in values.items()},
            "SCAVENGER_STEP": str(0 if held is None else held.step),
            "SCAVENGER_EPOCH": str(0 if held is None else held.epoch),
            "SCAVENGER_SAMPLES": str(0 if held is None else held.samples),
            **own,
        }
        without = tuple(name for name in _OWN if name not in own)
        words = fill(self.run.command, {**self.job.params, **values})
        files = dict(held.files or {}) if held is not None and storage else {}
        return cm.StartProgram(
            group.view,
            words,
            env,
            without,
            self.run.log or (),
            self.metric,
            storage,
            checkpoint_dir if storage else "",
            files,
            self.carry_every_s if storage else 0.0,
        )

    @property
    def setup_words(self) -> tuple[str, ...]:
        """The command that prepares a machine, and its arguments."""
        return fill(self.run.setup or "", self.job.params)

    def manifest(self, samples: int, *, checkpoint_bytes: int = 0) -> Manifest:
        """Describe the command as a model is described; stored models are of the same command and the same files.

        These are the files that it names, and all Python files of its folder, from which it may import.
        """
        digest = hashlib.sha256(
            repr((self.run.command, sorted(self.job.params.items()), sorted(self.job.env.items()))).encode()
        )
        folder = self.job.job_dir
        named = [path for word in self.run.command.split() if (path := folder / word).is_file()]
        files = dict.fromkeys((*named, *programs(folder)))
        digest.update(digest_of(files, folder))
        return Manifest(
            tensors=(TensorSpec("checkpoint", (checkpoint_bytes,), "uint8", "first"),),
            metrics=(),
            optimizer='{"class_name": "command", "config": {}}',
            architecture=digest.hexdigest()[:32],
            parameters=0,
            dataset_size=samples,
            validation_size=0,
            sample_bytes=0,
            metric_names=tuple(dict.fromkeys((LOSS, *([self.metric] if self.metric else [])))),
            compared=f"compared were the command, its params and {len(files)} files of its folder, and not its data",
        )


def own_environment() -> Mapping[str, str]:
    """The variables of this process that a command is to see as they are."""
    return {name: os.environ[name] for name in _OWN if name in os.environ}
