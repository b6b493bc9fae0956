"""Where a job runs, and that nothing is touched before it is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake import FakeProvider

from scavenger.control.job_file.load import load_job, override_job
from scavenger.control.jobs.ahead import begin_ahead
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import PreparedJob, prepare_job
from scavenger.control.places import vms
from scavenger.control.places.launching import ADDRESS_VARIABLE
from scavenger.control.places.needs import Kind, Where, where_workers_are
from scavenger.control.places.place import JobContext
from scavenger.control.places.this_machine import check_worker_counts
from scavenger.domain.environment import plain
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Noted, Observer
from scavenger.errors import ConfigurationError, NotSupportedError, TransientError
from scavenger.store import Store
from scavenger.train.engines.warm import WarmServers

CLOUD = {"infra": "aws/us-east-1", "resources": {"vm": "c5.large"}}


def spec(**sections: Any) -> JobSpec:
    usual = {
        "version": 1,
        "name": "tiny",
        "train": "train:job",
        "goal": {"max_epochs": 2},
        "search": {"workers": "1..2", "batch_size": [64]},
    }
    given = {key: value for key, value in {**usual, **sections}.items() if value is not None}
    return JobSpec.model_validate(given)


def prepared(folder: Path, **sections: Any) -> PreparedJob:
    (folder / "train.py").touch()
    return prepare_job(spec(**sections), folder / "job.yaml")


def test_on_this_machine_nothing_is_rented(tmp_path: Path) -> None:
    place = prepared(tmp_path).place

    assert (place.rents, place.aggregators, place.notes) == (False, None, ())
    assert {offer.provider for offer in place.space.offers} == {"local"}


def test_on_a_cloud_vms_are_rented_and_one_for_the_aggregators(tmp_path: Path) -> None:
    place = prepared(tmp_path, **CLOUD).place

    assert place.rents
    assert [offer.vm for offer in place.space.offers] == ["c5.large"]
    assert place.aggregators is not None
    assert not place.aggregators.spot


@pytest.mark.parametrize("sections", [{}, {"engine": "ray"}, CLOUD, {**CLOUD, "spot": "auto"}])
def test_every_place_tells_the_same_of_a_job(tmp_path: Path, sections: dict[str, Any]) -> None:
    job = prepared(tmp_path, **sections)
    place, where = job.place, where_workers_are(job.job)

    assert (job.kind, job.job) == (Kind.KERAS, place.job)
    assert place.rents == job.job.infra.capabilities.rents == (where is Where.VMS)
    assert place.space.workers == (1, 2)
    assert place.hardware
    assert (place.aggregators is not None) == place.rents
    assert place.leader is None or place.rents
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        settled = place.settled(store)
        assert settled.settled(store) is settled
    assert settled.space == place.space


class _Begun(WarmServers):
    """Notes what is to begin."""

    def begin(self, own: Mapping[str, str], secrets: Collection[str]) -> None:
        self.begun = (dict(own), *secrets)


@pytest.mark.parametrize(
    ("sections", "code", "begun"),
    [
        ({}, "", ({},)),
        (
            {"env": {"A": "${HOME}/data", "B": "$$1"}, "secrets": ["KEY"]},
            "",
            ({"A": "/h/data", "B": "$1"}, "KEY"),
        ),
        ({"env": ["UNSET"]}, "", None),  # which is told when the job is prepared
        ({}, "job = LoopJob(train)", None),
        ({"train": None, "run": "python train.py"}, "", None),
        ({"engine": "ray"}, "", None),
        ({"aggregation": "shared"}, "", None),
        (CLOUD, "", None),
    ],
)
def test_tensorflow_is_imported_ahead_where_workers_will_be_forked_here_and_nowhere_else(
    tmp_path: Path, sections: dict[str, Any], code: str, begun: tuple[object, ...] | None
) -> None:
    (tmp_path / "train.py").write_text(code)
    warm = _Begun()
    begin_ahead(spec(**sections), tmp_path / "job.yaml", warm, {"HOME": "/h", "KEY": "tell-nobody"})

    assert getattr(warm, "begun", None) == begun


def test_what_cannot_run_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="spot"):
        prepared(tmp_path, spot="always")
    with pytest.raises(ConfigurationError, match=r"absent\.py"):
        prepared(tmp_path, train="absent:job")


@pytest.mark.parametrize(
    "url", ["memory://here", "leader:///here", "http://host/here", "HTTPS://me:pw@host/here"]
)
def test_a_location_that_cannot_hold_checkpoints_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"checkpoint\.path: .*name a folder or a bucket") as caught:
        prepared(tmp_path, checkpoint={"path": url})
    assert "pw" not in str(caught.value)


def test_folders_may_hold_checkpoints_and_storage_that_answers(tmp_path: Path) -> None:
    for path in ("./checkpoints", f"file://{tmp_path}/data/job"):
        prepared(tmp_path, checkpoint={"path": path})
    with pytest.raises(
        TransientError, match=r"^checkpoint.path: ftp://127.0.0.1:1/job: the storage does not"
    ):
        prepared(tmp_path, checkpoint={"path": "ftp://me:pw@127.0.0.1:1/job"})


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("abfs://bucket/job", "Install adlfs"),
        ("nosuch://bucket/job", "Protocol not known: nosuch; write s3://BUCKET/FOLDER"),
        ("gs:/bucket/job", "write gs://bucket/job"),
        ("s3:bucket/job", "write s3://bucket/job"),
    ],
)
def test_checkpoints_in_storage_that_no_installed_package_reaches_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)  # as if it was not installed
    with pytest.raises(
        ConfigurationError, match=rf"^{tmp_path}/job\.yaml: checkpoint\.path: {url}:? .*{words}"
    ):
        prepared(tmp_path, checkpoint={"path": url})


@pytest.mark.parametrize("sections", [{"output": "file/out"}, {"checkpoint": {"path": "./file/here"}}])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, sections: dict[str, Any]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigurationError, match=rf"(output|checkpoint\.path): {tmp_path}/file is not a folder"
    ):
        prepared(tmp_path, **sections)
    assert not (tmp_path / ".scavenger").exists()


def test_a_folder_that_cannot_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # permissions do not hold root back
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "locked")
    (tmp_path / "locked").mkdir()
    with pytest.raises(ConfigurationError, match=rf"chmod u\+wx {tmp_path}/locked"):
        prepared(tmp_path, output="locked/out")
    prepared(tmp_path, output="open/out")


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("infra", "kubernetes", "5:8"),
        ("spot", "always", "5:7"),
        ("objective", "\n  utility: -time_s", "6:3"),
        ("resources", "\n  vm: e2-standard-4", "6:3"),
        ("resources", "{accelerators: 'T4:1'}", "5:12"),
        ("checkpoint", "\n  path: memory://x", "6:9"),
        ("train", "absent:job", "5:8"),
    ],
)
def test_what_is_refused_later_has_its_place_in_the_file_too(
    tmp_path: Path, key: str, value: str, place: str
) -> None:
    train = "" if key == "train" else "train: train:job\n"
    lines = ["version: 1", "name: tiny", "goal: {max_epochs: 2}", train or "# train", f"{key}: {value}"]
    text = "\n".join(line.rstrip("\n") for line in lines) + "\n"
    file = tmp_path / "job.yaml"
    file.write_text(text)
    (tmp_path / "train.py").touch()

    with pytest.raises(ConfigurationError) as caught:
        prepare_job(load_job(file), file)

    assert str(caught.value).startswith(f"{file}:{place}: ")


def test_variables_of_who_begins_a_job_are_settled_once_and_refused_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "version: 1\nname: tiny\ntrain: train:job\ngoal: {max_epochs: 2}\n"
        "env:\n  DATA_VERSION: ${VERSION}-$$a\n  PLAIN: 3\n"
    )
    (tmp_path / "train.py").touch()
    job = load_job(file)
    settled = prepare_job(job, file, environ={"VERSION": "$2"}).job

    assert plain(settled.env) == {"DATA_VERSION": "$2-$a", "PLAIN": "3"}
    assert prepare_job(JobSpec.model_validate(settled.written()), file, environ={}).job == settled
    with pytest.raises(ConfigurationError) as caught:
        prepare_job(job, file, environ={})
    assert str(caught.value) == (
        f"{file}:6:17: env.DATA_VERSION: VERSION is not set where the job is begun; set it there, or write its value"
    )
    for name, value, words in (
        ("DB_PASSWORD", "tell-nobody", "DB_PASSWORD is a secret by its name"),
        ("A", "\udcff", "the value of A is not UTF-8"),
    ):
        with pytest.raises(ConfigurationError, match=words) as caught:
            prepare_job(override_job(job, {"env": [name]}), file, environ={name: value})
        assert "tell-nobody" not in str(caught.value)


def test_secrets_that_cannot_be_taken_or_masked_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("version: 1\nname: tiny\ntrain: train:job\ngoal: {max_epochs: 2}\nsecrets: [MY_KEY]\n")
    (tmp_path / "train.py").touch()
    job = load_job(file)

    assert "tell-nobody" not in str(prepare_job(job, file, environ={"MY_KEY": "tell-nobody"}).job)
    for environ, words in (
        ({}, "MY_KEY is not set where the job is begun; set it there"),
        (
            {"MY_KEY": "abc"},
            "MY_KEY is shorter than 4 characters, and could not be masked; name it under env",
        ),
        ({"MY_KEY": "a secret\udcff"}, "MY_KEY is not UTF-8"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            prepare_job(job, file, environ=environ)
        assert str(caught.value) == f"{file}:5:10: secrets: {words}"


def test_a_value_that_is_not_the_one_in_the_file_gets_no_place_in_it(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("version: 1\nname: tiny\ntrain: train:job\ngoal: {max_epochs: 2}\nspot: never\n")
    (tmp_path / "train.py").touch()

    with pytest.raises(NotSupportedError) as caught:
        prepare_job(override_job(load_job(file), {"spot": "always"}), file)

    assert str(caught.value).startswith(f"{file}: spot: always needs")


def test_far_more_workers_than_processors_are_warned_about_and_more_than_fit_are_refused() -> None:
    assert check_worker_counts(8, 2, 8 << 30) == ()
    (warning,) = check_worker_counts(9, 2, 8 << 30)
    assert "9 workers would share 2 processors" in warning
    assert "workers: 1..2" in warning
    with pytest.raises(
        ConfigurationError, match=r"at least 1024 GiB.*has 8; write workers: 1\.\.2"
    ) as caught:
        check_worker_counts(4096, 2, 8 << 30)
    assert caught.value.key == "search.workers"


def test_the_warning_of_too_many_workers_is_told_when_the_job_starts(tmp_path: Path) -> None:
    place = prepared(tmp_path, search={"workers": [1, 2], "batch_size": [64]}).place
    place.notes = ("37 workers",)  # as on a smaller machine
    told: list[str] = []
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        record = store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml")
        context = JobContext(
            store,
            record,
            tmp_path,
            tmp_path,
            inform=told.append,
            warn=lambda message: told.append(f"warning: {message}"),
        )
        place.allocate(context)
    assert told == ["warning: 37 workers"]


def test_a_job_on_a_cloud_that_vms_cannot_reach_is_refused_when_it_is_run_and_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        run = JobRun(prepared(tmp_path, **CLOUD), store=store, observer=Observer(), run=True, confirm=None)
        assert (run.processes, run.vms) == (0, 0)
        run.kill_now()  # of nothing

        with pytest.raises(ConfigurationError, match=ADDRESS_VARIABLE):
            run.run()
        assert store.jobs() == ()


def test_a_job_that_waits_for_its_cloud_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    cloud = FakeProvider(name="aws", region="us-east-1")
    cloud.throttle(1000)
    monkeypatch.setattr(vms, "open_provider", lambda *_: cloud)

    class Impatient(Observer):
        def on_event(self, event: object) -> None:
            if isinstance(event, Noted) and "tried again for up to 5 min" in event.message:
                run.request_stop("interrupted")

    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        run = JobRun(prepared(tmp_path, **CLOUD), store=store, observer=Impatient(), run=True, confirm=None)
        report = run.run()

    assert (report.job.state, report.exit_code) == ("interrupted", 130)


@pytest.mark.parametrize("strategy", ["none", "universal"])
def test_a_strategy_without_any_stored_model_is_refused_before_a_vm_is_rented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    monkeypatch.setattr(vms, "open_provider", None)  # the cloud is not asked
    search = {"strategy": strategy, "workers": "1..2", "batch_size": [64]}
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        job = prepared(tmp_path, search=search, **CLOUD)
        with pytest.raises(ConfigurationError, match=f"search strategy '{strategy}' needs .*stored model"):
            JobRun(job, store=store, observer=Observer(), run=True, confirm=None).run()
        assert store.jobs() == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "needless"),
    [
        (
            "scavenger.control.service.runner",  # of a job on this machine: nothing that rents
            ("scavenger.cloud.catalog", "scavenger.control.places.vms", "scavenger.train.engines.vm"),
        ),
        ("scavenger.train.custom_loop.worker", ("pydantic", "sqlalchemy", "tensorflow")),
    ],
)
def test_what_is_started_for_each_job_imports_nothing_that_few_need(
    program: str, needless: tuple[str, ...]
) -> None:
    code = f"import sys, {program}; print([name for name in {needless} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
