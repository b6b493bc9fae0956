"""The model library: stored models and finished runs of similar jobs, to which each run adds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields

from scavenger.control.search.sources import Sources
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.fingerprint import Fingerprint, place_of_hardware, settings_of, with_sources
from scavenger.domain.measurement import ConvergenceRecord
from scavenger.errors import ConfigurationError
from scavenger.models.aggregation import ModelSize
from scavenger.models.average import average
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.models.starts import Starts
from scavenger.search.aggregator_vms import named_vms
from scavenger.search.plan import NO_MODEL
from scavenger.search.reuse import SIMILAR_MAX, as_prior, distance, find_nearest
from scavenger.store import Store
from scavenger.store.records import JobRecord, ModelRecord
from scavenger.train.transport.messages.values import Manifest

_SETTINGS = ("optimizer", "goal")
"""Fingerprint fields that do not affect step times, so that models carry over; live steps still verify them."""
_OF_THE_JOB = tuple(field.name for field in fields(Fingerprint) if field.name != "vm")


class ModelLibrary:
    """The stored models and finished runs that are relevant to one job; created by `read`.

    Args:
        write: Executes a write to the store, now or later.
        warn: Receives a warning for each stored model that is left out.

    Attributes:
        same: The newest model of the same job on the same hardware; None if there is none.
        convergence: Runs of the same job to the same goal, on any hardware, oldest first; a run that missed the goal
            with when it would have reached it.
        run_ratios: Step time in the run over that in its profile, of the latest jobs of any kind on this hardware.
        rerun_ratios: Step time in a run over that of the run of the same job before it, of those.
        endings_s: What saving such a model and ending the processes took in its latest runs here, seconds.
        starts: Starts of workers in the latest jobs of any kind on this hardware.
        rests_of_starts_s: What was left of the first start when the module was known, in its latest runs here.
        program_starts_s: By what the start of its program delayed training in its latest runs here, seconds.
    """

    def __init__(
        self,
        store: Store,
        fingerprint: Fingerprint,
        *,
        write: Callable[[Callable[[], object]], None],
        warn: Callable[[str], None],
    ) -> None:
        self._store, self._fingerprint, self._write, self._warn = store, fingerprint, write, warn
        self._kept: str | None = None
        self._refused: set[str] = set()
        self.same: JobModel | None = None
        self.convergence: tuple[ConvergenceRecord, ...] = ()
        self.run_ratios: tuple[float, ...] = ()
        self.rerun_ratios: tuple[float, ...] = ()
        self.endings_s: tuple[float, ...] = ()
        self.starts = Starts()
        self.rests_of_starts_s: tuple[float, ...] = ()
        self.program_starts_s: tuple[float, ...] = ()

    @classmethod
    def read(
        cls,
        store: Store,
        fingerprint: Fingerprint,
        *,
        write: Callable[[Callable[[], object]], None],
        warn: Callable[[str], None],
    ) -> ModelLibrary:
        """Read the stored models and runs; see the class for the arguments."""
        library = cls(store, fingerprint, write=write, warn=warn)
        library.same = next(iter(library._loaded(store.find_models(fingerprint))), None)
        library.convergence = store.convergence(fingerprint)
        library.run_ratios = store.run_ratios(fingerprint)
        library.rerun_ratios = store.rerun_ratios(fingerprint)
        library.endings_s = store.endings_s(fingerprint)
        library.rests_of_starts_s = store.rests_of_starts_s(fingerprint)
        library.program_starts_s = store.program_starts_s(fingerprint)
        starts_s = store.starts_s(fingerprint)
        library.starts = Starts(
            tuple(first_s for first_s, _ in starts_s if first_s),
            tuple(further_s for _, further_s in starts_s if further_s),
        )
        return library

    def nearest(self) -> tuple[JobModel, str] | None:
        """Find the nearest model of a job that differs only in settings, as in a search over hyperparameters.

        Returns:
            The model, whose epochs are the less certain the further that job is away, and the names of what differs;
            None if there is no such model.
        """
        found = self._nearest(self._store.find_models(self._fingerprint, ignoring=_SETTINGS))
        if found is None:
            return None
        record, model = found
        return as_prior(model, distance(self._fingerprint, record.fingerprint)), self._differing(record)

    def changed(self) -> str:
        """The names of what differs in the nearest job of the same model, data set and goal; empty if there is none."""
        records = self._store.find_models(self._fingerprint, ignoring=("optimizer",))
        nearest = find_nearest(self._fingerprint, [record.fingerprint for record in records])
        return "" if nearest is None else self._differing(records[nearest])

    def of_other_vms(self, model: ModelSize) -> tuple[JobModel, int, int] | None:
        """Find the same job's model of this place with another number of aggregator VMs, and tell it of ours.

        Args:
            model: Says how VMs share the job's model.

        Returns:
            The model; the number with which its steps were measured, and the present one. None if there is none.
        """
        place, ours = place_of_hardware(self._fingerprint.hardware)
        found: list[tuple[float, int, ModelRecord]] = []
        for record in self._store.find_models(self._fingerprint, ignoring=("hardware",)):
            its_place, vms = place_of_hardware(record.fingerprint.hardware)
            if its_place == place and vms != ours:
                found.append((abs(math.log(vms / ours)), vms, record))
        for _, vms, record in sorted(found, key=lambda one: one[:2]):
            for loaded in self._loaded([record]):
                note = f"synchronisation with {named_vms(ours)} is predicted from steps with {named_vms(vms)}"
                return loaded.with_share(model.share(vms), model.share(ours), note), vms, ours
        return None

    def similar(self) -> tuple[JobModel, str] | None:
        """Find a model of a job similar enough to shorten the search.

        Returns:
            The model and the names of the differing fields; None if there is no such model.
        """
        mine = self._fingerprint
        here = [
            record
            for record in self._store.find_models(mine, ignoring=_OF_THE_JOB)
            if record.fingerprint.hardware == mine.hardware
        ]
        found = self._nearest(here)
        if found is None:
            return None
        record, model = found
        away = distance(mine, record.fingerprint)
        return (as_prior(model, away), self._differing(record)) if away <= SIMILAR_MAX else None

    def _nearest(self, alike: Iterable[ModelRecord]) -> tuple[ModelRecord, JobModel] | None:
        """The nearest of the given models that this version can read."""
        left = list(alike)
        while (found := find_nearest(self._fingerprint, [record.fingerprint for record in left])) is not None:
            record = left.pop(found)
            for model in self._loaded([record]):
                return record, model
        return None

    def _loaded(self, records: Iterable[ModelRecord]) -> Iterator[JobModel]:
        """Load the models that this version can read and that can predict; warn about unusable ones of this version."""
        for record in records:
            if record.schema_version != SCHEMA_VERSION:
                continue
            try:
                yield JobModel.from_dict(record.model)
            except ValueError as error:
                if record.id not in self._refused:
                    self._refused.add(record.id)
                    reason = " ".join(str(error).split())[:200]
                    self._warn(
                        f"stored model {record.id[:8]} is left out: {reason}; to remove it: "
                        f"scavenger models rm {record.id[:8]}"
                    )

    def _differing(self, record: ModelRecord) -> str:
        mine, names = self._fingerprint, []
        for one in fields(mine):
            ours, theirs = getattr(mine, one.name), getattr(record.fingerprint, one.name)
            if one.name == "optimizer":
                now, before = settings_of(ours), settings_of(theirs)
                names += [name for name in {**now, **before} if now.get(name) != before.get(name)]
            elif ours != theirs:
                names.append(one.name.replace("_", " "))
        return " and ".join(names)

    def universal(self) -> JobModel | None:
        """The universal model: the average of all stored models on this VM type; None if there is none."""
        here = self._store.find_models(self._fingerprint, ignoring=_OF_THE_JOB)
        models = list(self._loaded(here))
        return average(models) if models else None

    def keep(self, model: JobModel, job_id: str, *, measurements: int) -> None:
        """Store a fitted model."""
        document, runs = model.to_dict(), len(self.convergence)

        def save() -> None:
            record = self._store.save_model(
                self._fingerprint,
                document,
                job_id=job_id,
                schema_version=SCHEMA_VERSION,
                measurements=measurements,
                runs=runs,
            )
            if self._kept not in (None, record.id):
                self._store.delete_model(
                    str(self._kept)
                )  # an earlier model of the same run, fitted to less data
            self._kept = record.id

        self._write(save)

    def converged(
        self,
        samples_by_batch: Mapping[int, int],
        epochs: int,
        job_id: str,
        *,
        needed: Mapping[int, float] | None = None,
    ) -> None:
        """Store the epochs of a finished run, under the batch size of most of its samples.

        Args:
            needed: Epochs that the whole run takes at each batch size, by its models: a sample at another batch size,
                as while the search tried it, is worth as much more as fewer of them are needed there. None if unknown.
        """
        main = max(samples_by_batch, key=samples_by_batch.__getitem__)
        worth = {batch: needed[main] / needed[batch] if needed else 1.0 for batch in samples_by_batch}
        share = math.fsum(samples * worth[batch] for batch, samples in samples_by_batch.items())
        self.add(ConvergenceRecord(main, epochs * share / sum(samples_by_batch.values()), 1.0), job_id)

    def add(self, record: ConvergenceRecord, job_id: str) -> None:
        """Store when a run reached its target, or would have."""
        self.convergence += (record,)
        self._write(lambda: self._store.add_convergence(self._fingerprint, record, job_id))


def check_model(model: Mapping[str, object], schema_version: int) -> None:
    """Check that a stored model can be read and can predict; models of other versions are not checked.

    Raises:
        ValueError: If it cannot be read, or cannot predict.
    """
    if schema_version == SCHEMA_VERSION:
        JobModel.from_dict(model)


def save_fit(store: Store, job: JobRecord, model: JobModel) -> ModelRecord:
    """Store a model that was fitted to past measurements, so that later jobs of the same kind use it.

    Raises:
        ConfigurationError: The job never loaded its data, or the model is of another number of samples an epoch, or of
            other VMs.
    """
    if job.fingerprint is None:
        raise ConfigurationError(
            f"job {job.name} ({job.id[:8]}) never loaded its data: run `scavenger plan` first"
        )
    size = job.fingerprint.dataset_size
    if model.dataset_size != size:
        raise ConfigurationError(
            f"job {job.name} has {size} samples an epoch, these models {model.dataset_size}: give "
            f"--dataset-size {size}, and column 'epochs' in epochs of that"
        )
    if job.fingerprint.vm not in {vm.vm for vm in model.vms}:
        raise ConfigurationError(
            f"job {job.name} runs on {job.fingerprint.vm}, of which there is no measurement; the files have "
            f"{', '.join(vm.vm for vm in model.vms)} in the column 'cluster'"
        )
    return store.save_model(
        job.fingerprint,
        model.to_dict(),
        job_id=job.id,
        schema_version=SCHEMA_VERSION,
        measurements=sum(len(vm.parallel.measured) for vm in model.vms),
        runs=0,
    )


def check_models_exist(store: Store, strategy: str, space: SearchSpace, *, hardware: str) -> None:
    """Refuse a search strategy that needs a stored model if there can be none, before anything is rented for the job.

    Whether a model is of the same job is known only once a worker has described the training module.

    Raises:
        ConfigurationError: If no intact model of any job is stored for one of the VM types.
    """
    if strategy not in ("none", "universal"):
        return
    vms, (place, _) = {offer.vm for offer in space.offers}, place_of_hardware(hardware)
    for record in store.models():
        here = place_of_hardware(record.fingerprint.hardware)[0] == place or strategy == "universal"
        usable = record.intact and record.schema_version == SCHEMA_VERSION
        if usable and here and record.fingerprint.vm in vms:
            return
    raise ConfigurationError(NO_MODEL[strategy], key="search.strategy")


def fingerprint_of(manifest: Manifest, goal: str, *, vm: str, hardware: str, sources: Sources) -> Fingerprint:
    """Compute a job's fingerprint, which determines which stored models apply to it.

    Args:
        manifest: The workers' description of the training module.
        goal: `Goal.text`.
        sources: Its training code, params and data.
    """
    return Fingerprint(
        architecture=manifest.architecture,
        parameters=manifest.parameters,
        optimizer=with_sources(_optimizer_id(manifest.optimizer), sources.digests),
        dataset_size=manifest.dataset_size,
        sample_bytes=manifest.sample_bytes,
        goal=goal,
        vm=vm,
        hardware=hardware,
    )


def _optimizer_id(serialised: str) -> str:
    """Id of a serialized Keras optimizer from its class and configuration without its name, as `Adam:1f0c2b...`."""
    body = json.loads(serialised)
    config = {key: value for key, value in body["config"].items() if key != "name"}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return f"{body['class_name']}:{digest[:16]}"
