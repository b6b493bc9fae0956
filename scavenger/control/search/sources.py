"""What a job is made of besides its model: training code, params and data, by which stored models are told apart."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from scavenger.domain.environment import plain
from scavenger.domain.job import JobSpec, Script
from scavenger.presentation.formatting import plural
from scavenger.train.training_folder import digest_of, programs
from scavenger.train.transport.messages.values import Manifest

_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Sources:
    """What a job's stored models are compared by, besides its model and optimizer.

    Attributes:
        digests: By what they are of, see `domain.fingerprint.with_sources`.
        compared: What was compared, and what was not, for the user.
    """

    digests: dict[str, str] = field(default_factory=dict)
    compared: str = ""

    @classmethod
    def of(cls, job: JobSpec, folder: Path, manifest: Manifest) -> Sources:
        """Read the Python files of the folder, from which the training code may import.

        A command describes all that itself: it is another one with another file or param.
        """
        if manifest.compared:
            return cls(compared=manifest.compared)
        files = tuple(programs(folder))
        arguments = job.train.arguments if isinstance(job.train, Script) else ()
        set_by_file = (sorted(job.params.items()), sorted(plain(job.env).items()), *arguments)
        digests = {
            "training code": digest_of(files, folder).hex()[:_DIGITS],
            "params": hashlib.sha256(repr(set_by_file).encode()).hexdigest()[:_DIGITS],
        }
        if job.elastic.gradients != "float32":
            digests["gradients"] = job.elastic.gradients
        if job.elastic.exchange != "auto":
            digests["exchange"] = job.elastic.exchange
        if job.elastic.processes != 1:
            digests["processes of a worker"] = str(job.elastic.processes)
        if manifest.data:
            digests["data"] = manifest.data[:_DIGITS]
            data = "and some samples of its data"
        elif manifest.sample_bytes:
            data = (
                "and of its data some targets, as samples are read otherwise each time, or only in sequence"
            )
        else:
            data = "and not its data"
        count = plural(len(files), "Python file")
        return cls(digests, f"compared were {count} of its folder, its params and env, {data}")
