"""What a run finds of earlier ones in the store, and what it leaves there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import offer

from scavenger.control.search.model_library import ModelLibrary, check_model
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.fingerprint import Fingerprint, with_sources
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile
from scavenger.domain.report import Actual
from scavenger.errors import ConfigurationError
from scavenger.models.average import average
from scavenger.models.course import Course
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.models.starts import Starts
from scavenger.search.reuse import as_prior
from scavenger.store import Store

JOB = Fingerprint("a" * 64, 1000, "Adam:1", 3200, 64, "val_loss<=0.5", "local-1", "machine")
OTHER_RATE = replace(JOB, optimizer="Adam:2")
OTHER_MODEL = replace(JOB, architecture="b" * 64)
SPACE = SearchSpace((offer(),), (1, 2), (32, 64))


def model(step_time_s: float = 0.1) -> JobModel:
    measured = Measurement(
        Configuration("local-1", 1, 32), 20, step_time_s, 0.0, step_time_s / 2, step_time_s / 2, 1.5, 100.0, 1
    )
    return JobModel.fit(Profile((measured,), 3200), space=SPACE, epochs_hint=10.0, max_epochs=100)


def at_once(write: Callable[[], object]) -> None:
    write()


def unexpected(warning: str) -> None:
    raise AssertionError(warning)


def leave(store: Store, fingerprint: Fingerprint, *models: JobModel) -> str:
    job = store.create_job("tiny", spec={}, job_file="job.yaml")
    library = ModelLibrary.read(store, fingerprint, write=at_once, warn=unexpected)
    for each in models:
        library.keep(each, job.id, measurements=1)
    return job.id


def test_a_job_finds_its_own_model_and_one_with_other_settings_the_nearest(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        leave(store, JOB, model())
        leave(store, OTHER_MODEL, model(0.2))

        own, alike, new = (
            ModelLibrary.read(store, job, write=at_once, warn=unexpected)
            for job in (JOB, OTHER_RATE, OTHER_MODEL)
        )
        strange = ModelLibrary.read(
            store, replace(OTHER_MODEL, dataset_size=7, vm="local-2"), write=at_once, warn=unexpected
        )

        assert (own.same, alike.same, new.same) == (model(), None, model(0.2))
        assert alike.nearest() == (as_prior(model(), 0.5), "optimizer")
        assert (strange.same, strange.nearest(), strange.universal()) == (None, None, None)
        assert alike.universal() == average([model(0.2), model()])


def test_a_job_with_other_training_code_is_searched_again_with_the_stored_model_as_a_prior(
    tmp_path: Path,
) -> None:
    before, same, code, both = (
        replace(JOB, optimizer=with_sources("Adam:1", {"training code": code, "data": data}))
        for code, data in (("1", "1"), ("1", "1"), ("2", "1"), ("2", "2"))
    )
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        leave(store, before, model())
        store.add_convergence(
            before, ConvergenceRecord(32, 7.0, 1.0), store.create_job("a", spec={}, job_file="").id
        )
        unchanged, changed, other = (
            ModelLibrary.read(store, one, write=at_once, warn=unexpected) for one in (same, code, both)
        )

        assert (unchanged.same, len(unchanged.convergence), unchanged.changed()) == (model(), 1, "")
        assert (changed.same, changed.convergence, changed.changed()) == (None, (), "training code")
        assert changed.similar() == (as_prior(model(), 2.0), "training code")
        assert (other.same, other.similar(), other.changed()) == (None, None, "training code and data")
        narrow, wide = (
            one.statistical.predict(np.array([32.0]))[1] for one in (model(), changed.similar()[0])
        )
        assert wide > narrow + 0.3


def test_the_course_of_a_similar_job_comes_with_its_model_and_into_the_next_fit(tmp_path: Path) -> None:
    course = Course("val_loss", (1.0, 2.0), (0.9, 0.6))
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        leave(store, JOB, replace(model(), course=course))
        found = ModelLibrary.read(store, OTHER_RATE, write=at_once, warn=unexpected).similar()
    assert found is not None
    fitted = JobModel.fit(Profile((), 3200), space=SPACE, epochs_hint=None, max_epochs=100, prior=found[0])

    assert fitted.course == found[0].course == course


def test_a_model_stored_without_a_course_can_be_read() -> None:
    document = model().to_dict()
    written = document["model"]
    assert isinstance(written, dict)
    del written["course"]

    assert JobModel.from_dict(document) == model()


def test_a_run_leaves_the_last_of_its_models_alone(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        leave(store, JOB, model(0.1), model(0.2))

        assert [record.model for record in store.models()] == [model(0.2).to_dict()]


def test_what_a_run_learned_serves_its_own_next_fit_before_it_is_written(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        job = store.create_job("tiny", spec={}, job_file="job.yaml")
        later: list[Callable[[], object]] = []
        library = ModelLibrary.read(store, JOB, write=later.append, warn=unexpected)
        library.converged({32: 100, 64: 3200}, 7, job.id)
        library.keep(model(), job.id, measurements=1)

        assert library.convergence == (ConvergenceRecord(64, 7.0, 1.0),)
        assert (store.models(), store.convergence(JOB)) == ((), ())
        for write in later:
            write()
        (kept,) = store.models()
        assert kept.runs == 1
        assert store.convergence(JOB) == library.convergence


def test_each_part_of_a_run_counts_by_the_epochs_of_its_own_batch_size(tmp_path: Path) -> None:
    """Half of the samples were trained at a batch size that needs half of the epochs: each is worth two."""
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        job = store.create_job("tiny", spec={}, job_file="job.yaml")
        library = ModelLibrary.read(store, JOB, write=at_once, warn=unexpected)
        library.converged({32: 3199, 64: 3201}, 6, job.id, needed={32: 5.0, 64: 10.0})
        (found,) = store.convergence(JOB)

    assert found.global_batch_size == 64
    assert found.epochs == pytest.approx(9.0, rel=1e-3)


def test_a_missed_target_is_kept_with_the_error_of_its_forecast_until_the_job_goes_on_to_it(
    tmp_path: Path,
) -> None:
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        job = store.create_job("tiny", spec={}, job_file="job.yaml")
        library = ModelLibrary.read(store, JOB, write=at_once, warn=unexpected)
        missed = ConvergenceRecord(32, 25.0, 1.0, 0.4)
        library.add(missed, job.id)
        assert store.convergence(JOB) == library.convergence == (missed,)

        library.converged({32: 3200}, 30, job.id)
        assert store.convergence(JOB) == (ConvergenceRecord(32, 30.0, 1.0),)


def test_starts_of_earlier_jobs_on_this_hardware_are_known(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        for fingerprint, first_s, further_s in (
            (JOB, 5.0, 2.0),
            (OTHER_MODEL, 6.0, 0.0),
            (replace(JOB, hardware="another"), 90.0, 90.0),
        ):
            job = store.create_job("tiny", spec={}, job_file="job.yaml")
            actual = Actual(60.0, 0.1, 0.2, 5.0, 1.0, first_s, further_s)
            store.update_job(job.id, fingerprint=fingerprint, actual=actual)
        library = ModelLibrary.read(store, JOB, write=at_once, warn=unexpected)

    assert library.starts == Starts((6.0, 5.0), (2.0,))


def test_a_model_that_cannot_be_read_does_not_hide_the_next_nearest(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        leave(store, JOB, model())
        job = store.create_job("old", spec={}, job_file="job.yaml")
        old = {**model().to_dict(), "schema_version": 1}
        store.save_model(
            replace(JOB, optimizer="Adam:3"), old, job_id=job.id, schema_version=1, measurements=1, runs=0
        )
        mine = ModelLibrary.read(store, replace(JOB, optimizer="Adam:3"), write=at_once, warn=unexpected)

        assert mine.same is None
        assert mine.nearest() == (as_prior(model(), 0.5), "optimizer")
        found = mine.similar()
        assert found is not None
        assert found[1] == "optimizer"


def test_a_stored_model_that_cannot_predict_is_left_out_with_one_warning(tmp_path: Path) -> None:
    spoilt = json.loads(json.dumps(model().to_dict()))
    spoilt["model"]["vms"][0]["memory"] = {"base_bytes": 1.0, "per_sample_bytes": 1e300}
    warnings: list[str] = []
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        leave(store, JOB, model(0.3))
        record = store.save_model(
            JOB, spoilt, job_id=None, schema_version=SCHEMA_VERSION, measurements=1, runs=0
        )
        library = ModelLibrary.read(store, JOB, write=at_once, warn=warnings.append)

        assert library.same == model(0.3)
        assert library.universal() == average([model(0.3)])
    assert len(warnings) == 1
    assert record.id[:8] in warnings[0]


def test_what_cannot_predict_is_not_imported(tmp_path: Path) -> None:
    spoilt = json.loads(json.dumps(model().to_dict()))
    spoilt["model"]["vms"][0]["memory"] = {"base_bytes": 1.0, "per_sample_bytes": 1e300}
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        leave(store, JOB, model())
        good = store.export_models()
        store.save_model(JOB, spoilt, job_id=None, schema_version=SCHEMA_VERSION, measurements=1, runs=0)
        bad = store.export_models()
    with Store.open(f"sqlite:///{tmp_path / 'other.db'}") as store:
        with pytest.raises(ConfigurationError, match=r"models\.\d is refused: .*per_sample_bytes"):
            store.import_models(bad, check=check_model)
        assert store.models() == ()
        assert len(store.import_models(good, check=check_model)) == 1
