"""Laws of fitted models: one content has one id, the changed is never used, nothing imported is believed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from properties import examples
from sqlalchemy import create_engine, text
from store_values import ELSEWHERE, FINGERPRINT, MODEL, Clock, documents, fingerprints, save

from scavenger.domain.configuration import Configuration
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.measurement import ConvergenceRecord, Measurement
from scavenger.domain.report import Actual, JobState
from scavenger.errors import ConfigurationError, StoreError
from scavenger.store import Store
from scavenger.store.database import Database
from scavenger.store.documents import MODEL_BYTES_MAX, digest


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('shared')}/s.db") as store:
        yield store


@pytest.fixture
def other(tmp_path) -> Iterator[Store]:
    """Another user's store."""
    with Store.open(f"sqlite:///{tmp_path}/other.db") as store:
        yield store


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


class TestKeeping:
    @examples(16, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(fingerprints, documents)
    def test_a_model_is_read_as_written_and_intact(self, shared: Store, fingerprint, model) -> None:
        saved = save(shared, fingerprint, model)

        assert (saved.fingerprint, saved.model, saved.intact) == (fingerprint, model, True)
        assert shared.model(saved.id) == saved
        assert saved in shared.find_models(fingerprint)

    def test_the_same_content_is_kept_once_under_one_id(self, store: Store) -> None:
        reordered = dict(reversed(MODEL.items()))

        assert save(store) == save(store, model=reordered)
        assert len(store.models()) == 1
        assert save(store, runs=2).id != save(store).id

    def test_look_ups_match_the_kind_and_put_the_newest_first(self, url: str) -> None:
        clock = Clock()
        with Store.open(url, clock=clock) as store:
            here = save(store)
            clock.pass_(1)
            there = save(store, ELSEWHERE)
            clock.pass_(1)
            save(store, replace(FINGERPRINT, goal="val_accuracy>=0.99"))

            assert store.find_models(FINGERPRINT) == (here,)
            assert store.find_models(FINGERPRINT, ignoring=("vm", "hardware")) == (there, here)
            assert len(store.find_models(FINGERPRINT, ignoring=("vm", "hardware", "goal"))) == 3
            with pytest.raises(ValueError, match="no field colour"):
                store.find_models(FINGERPRINT, ignoring=("colour",))

    def test_deleted_by_the_beginning_of_its_id(self, store: Store) -> None:
        kept, gone = save(store), save(store, ELSEWHERE)

        assert store.delete_model(gone.id[:8]) == gone
        assert store.models() == (kept,)
        for key in (gone.id, gone.id[:3], ""):
            with pytest.raises(ConfigurationError, match="no model"):
                store.model(key)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_a_model_with_a_number_that_is_none_is_refused(self, shared: Store, bad: float) -> None:
        with pytest.raises(ValueError, match="not finite"):
            save(shared, model={"coefficients": [1.0, bad]})


class TestTampering:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE models SET model = replace(model, '7.25', '0.25')",
            "UPDATE models SET model = '{'",
            "UPDATE models SET model = 'NaN'",
            "UPDATE models SET runs = 100",
            "UPDATE models SET schema_version = 9",
            "UPDATE fingerprints SET dataset_size = 5",
        ],
    )
    def test_a_changed_model_is_shown_but_never_found(self, url: str, statement: str) -> None:
        with Store.open(url) as store:
            saved = save(store)
            change(url, statement)

            (shown,) = store.models()
            assert not shown.intact
            assert store.find_models(shown.fingerprint) == ()
            assert store.find_models(FINGERPRINT) == ()
            assert store.export_models()["models"] == []
            with pytest.raises(ConfigurationError, match=f"model {saved.id[:12]} does not match its digest"):
                store.export_models([saved.id])

    def test_saving_or_importing_it_again_mends_it(self, url: str) -> None:
        with Store.open(url) as store:
            saved = save(store)
            document = store.export_models()
            change(url, "UPDATE models SET model = '{}'")
            assert save(store).intact

            change(url, "UPDATE fingerprints SET goal = ''")
            (mended,) = store.import_models(document)
            assert mended.intact
            assert store.find_models(FINGERPRINT) == (mended,)
            assert mended.id == saved.id


class TestReferences:
    def test_what_a_job_did_goes_with_it_and_what_it_learned_stays(self, url: str) -> None:
        with Store.open(url) as store:
            job = store.create_job("digits", spec={}, job_file="job.yaml")
            store.add_event(job.id, "note", "hello")
            store.set_process(job.id, "worker-1", role="worker", state="ready")
            saved = save(store, job_id=job.id)
            database = Database(url)
            with database.writing() as session:
                session.execute(text("DELETE FROM jobs"))
            database.close()

            assert (store.events(job.id), store.processes(job.id)) == ((), ())
            assert store.models() == (replace(saved, job_id=None),)

    def test_a_fingerprint_in_use_cannot_be_deleted(self, url: str) -> None:
        with Store.open(url) as store:
            saved = save(store)
            database = Database(url)
            with pytest.raises(StoreError, match=r"(?i)foreign key"), database.writing() as session:
                session.execute(text("DELETE FROM fingerprints"))
            database.close()
            assert store.models() == (saved,)


class TestExchange:
    def test_what_is_exported_is_imported_whole_and_only_once(self, store: Store, other: Store) -> None:
        mine = (save(store), save(store, ELSEWHERE, {"law": "noise-linear", "θ": 0.1}))
        document = json.loads(json.dumps(store.export_models()))

        for _ in range(2):
            taken = other.import_models(document)
            assert {record.id for record in taken} == {record.id for record in mine}
            assert len(other.models()) == 2
        assert all(record.origin == "imported" and record.intact for record in other.models())
        assert other.find_models(FINGERPRINT)[0].model == MODEL
        assert other.find_models(FINGERPRINT)[0].created_at == mine[0].created_at
        assert store.import_models(document) == tuple(
            map(store.model, (e["digest"] for e in document["models"]))
        )
        assert all(record.origin == "local" for record in store.models())

    def test_chosen_models_alone_are_exported(self, store: Store) -> None:
        save(store)
        chosen = save(store, ELSEWHERE)

        document = store.export_models([chosen.id[:10]])
        assert [entry["digest"] for entry in document["models"]] == [chosen.id]

    @pytest.mark.parametrize(
        ("spoil", "complaint"),
        [
            (lambda d: d["models"][0]["model"].update(e_min=1.0), "changed after its export"),
            (lambda d: d["models"][0]["fingerprint"].update(vm="other"), "changed after its export"),
            (lambda d: d["models"][0].update(runs=1_000), "changed after its export"),
            (lambda d: d["models"][0].update(runs=-1), "runs"),
            (lambda d: d["models"][0].update(digest="x"), "digest"),
            (lambda d: d["models"][0].update(created_at="yesterday"), "created_at"),
            (lambda d: d["models"][0].update(colour="red"), "colour"),
            (lambda d: d["models"][0]["fingerprint"].update(vm="\x1b[2J"), "vm"),
            (lambda d: d["models"][0]["fingerprint"].update(parameters=2**63), "parameters"),
            (lambda d: d["models"][0]["fingerprint"].update(parameters=True), "parameters"),
            (lambda d: d["models"][0]["model"].update(e_min=math.nan), "not finite"),
            (lambda d: d["models"][0]["model"].update(pad="x" * MODEL_BYTES_MAX), "bytes"),
            (lambda d: d["models"][0]["model"].update(deep=nested(5_000)), "deep"),
            (lambda d: d.pop("kind"), "kind"),
            (lambda d: d.update(schema_version=0), "schema_version"),
            (lambda d: d.update(schema_version=2), "newer Scavenger"),
            (lambda d: d.update(models=[{}] * 10_001), "models"),
        ],
    )
    def test_a_spoilt_document_is_refused_in_one_line_and_leaves_no_trace(
        self, shared: Store, other: Store, spoil: Callable[[dict[str, Any]], object], complaint: str
    ) -> None:
        document = shared.export_models([save(shared).id])
        (good,) = document["models"]
        document = {**document, "models": [copy.deepcopy(good), good]}
        spoil(document)

        with pytest.raises(ConfigurationError, match=complaint) as caught:
            other.import_models(document)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
        assert other.models() == ()

    @pytest.mark.parametrize("document", [None, [], "models", 7, {}])
    def test_what_is_no_document_at_all_is_refused(self, other: Store, document: Any) -> None:
        with pytest.raises(ConfigurationError, match="not a Scavenger models export"):
            other.import_models(document)

    def test_the_digest_is_that_of_the_published_canonical_form(self) -> None:
        """As `printf '{"a":[1,2.5],"b":"\\\\u00e9"}' | sha256sum` prints it."""
        assert digest({"b": "é", "a": [1, 2.5]}) == (
            "60d4fe7d84d09285a774fa6c850ed0e739e0153890529471751ae4df4e1df886"
        )


class TestConvergence:
    def test_runs_to_the_target_are_found_on_any_hardware(self, store: Store) -> None:
        jobs = [store.create_job("digits", spec={}, job_file="job.yaml") for _ in range(3)]
        records = [ConvergenceRecord(64, 7.5, 1.0), ConvergenceRecord(512, 13.0, 1.0)]
        store.add_convergence(FINGERPRINT, records[0], jobs[0].id)
        store.add_convergence(replace(ELSEWHERE, sample_bytes=1), records[1], jobs[1].id)
        store.add_convergence(replace(FINGERPRINT, goal="loss<=0.1"), ConvergenceRecord(8, 1.0), jobs[2].id)

        assert store.convergence(FINGERPRINT) == tuple(records)
        assert store.convergence(ELSEWHERE) == tuple(records)
        assert store.convergence(replace(FINGERPRINT, optimizer="SGD:00")) == ()

    def test_a_job_reaches_its_target_once(self, store: Store) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        store.add_convergence(FINGERPRINT, ConvergenceRecord(64, 7.5, 1.0), job.id)
        store.add_convergence(FINGERPRINT, ConvergenceRecord(64, 8.0, 1.0), job.id)

        assert store.convergence(FINGERPRINT) == (ConvergenceRecord(64, 8.0, 1.0),)
        with pytest.raises(ConfigurationError, match="no job none"):
            store.add_convergence(FINGERPRINT, ConvergenceRecord(64, 7.5, 1.0), "none")


class TestRunRatios:
    def job(
        self,
        store: Store,
        actual_s: float | None,
        *,
        profiled: bool = True,
        fingerprint: Fingerprint = FINGERPRINT,
    ) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        chosen, other = Configuration("vm", 2, 64), Configuration("vm", 1, 64)
        store.add_measurements(job.id, [Measurement(other, 20, 0.4, 0.0, 0.3, 0.1, None, None, 0)])
        if profiled:
            store.add_measurements(job.id, [Measurement(chosen, 20, 0.2, 0.0, 0.1, 0.1, None, None, 0)])
        store.update_job(job.id, fingerprint=fingerprint, chosen=chosen)
        if actual_s is not None:
            store.update_job(job.id, actual=Actual(60.0, 0.1, actual_s, 5.0))

    def test_jobs_that_ran_on_a_profiled_configuration_of_such_hardware(self, store: Store) -> None:
        self.job(store, 0.22)
        self.job(store, 0.3, fingerprint=replace(FINGERPRINT, architecture="cd" * 32, goal="loss<=0.1"))
        self.job(store, 0.9, profiled=False)
        self.job(store, 0.9, fingerprint=ELSEWHERE)
        self.job(store, None)

        assert sorted(store.run_ratios(FINGERPRINT)) == pytest.approx([1.1, 1.5])
        assert len(store.run_ratios(FINGERPRINT, limit=1)) == 1
        assert store.run_ratios(ELSEWHERE) == pytest.approx([4.5])

    def test_a_run_is_compared_with_the_one_before_it_of_the_same_job_and_choice(self, store: Store) -> None:
        self.job(store, 0.2)
        self.job(store, 0.9, fingerprint=replace(FINGERPRINT, goal="loss<=0.1"))
        self.job(store, 0.3, profiled=False)
        self.job(store, None)
        self.job(store, 0.24, profiled=False)
        self.job(store, 0.9, fingerprint=ELSEWHERE)

        assert sorted(store.rerun_ratios(FINGERPRINT)) == pytest.approx([0.8, 1.5])
        assert store.rerun_ratios(ELSEWHERE) == ()

    def test_endings_are_of_jobs_of_one_architecture_on_such_hardware_that_came_to_their_end(
        self, store: Store
    ) -> None:
        other = replace(FINGERPRINT, architecture="cd" * 32)
        tuned = replace(FINGERPRINT, optimizer="SGD:0f", goal="loss<=0.1")
        endings: list[tuple[float, Fingerprint, JobState]] = [
            (1.0, FINGERPRINT, "succeeded"),
            (2.0, tuned, "target_missed"),
            (3.0, FINGERPRINT, "interrupted"),
            (0.0, FINGERPRINT, "succeeded"),
            (4.0, other, "succeeded"),
            (5.0, ELSEWHERE, "succeeded"),
        ]
        for end_s, fingerprint, state in endings:
            job = store.create_job("digits", spec={}, job_file="job.yaml")
            store.update_job(job.id, fingerprint=fingerprint, actual=Actual(60.0, 0.1, 0.2, 5.0, end_s))
            store.finish_job(job.id, state=state, report=None, exit_code=0)

        assert sorted(store.endings_s(FINGERPRINT)) == [1.0, 2.0]
