"""A command of the user's own runs from a job file: searched, killed, resumed, and ended when the goal is reached."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_jobs import ROOT, Job, ended, lines, marked, opened
from waiting import wait_for

pytestmark = pytest.mark.slow

_PROGRAM = """
import json, os, sys, time
from scavenger.sdk.report import scavenger_report

folder = sys.argv[4]
batch, workers, rank, epochs = (int(sys.argv[at]) for at in (1, 2, 3, 5))
path = os.path.join(folder, "state.json")
state = json.load(open(path)) if os.path.exists(path) else {"epoch": 0, "done": 0, "error": 10.0}

def save():
    with open(path + ".part", "w") as file:
        json.dump(state, file)
    os.replace(path + ".part", path)
    return path

with scavenger_report(save=save, samples_per_epoch=640) as report:
    while state["epoch"] < epochs:
        while state["done"] < 640:
            time.sleep(0.0005 * batch)
            state["done"] += batch * workers
            state["error"] *= 0.99
            report.step(loss=state["error"])
        state["epoch"], state["done"] = state["epoch"] + 1, 0
        report.epoch(val_error=state["error"])
"""
_LIVE = """
import json, os, sys, time
from scavenger.sdk.report import scavenger_report

path = os.path.join(sys.argv[1], "state.json")
error, told = 10.0, open("told.jsonl", "a", buffering=1)

def save():
    with open(path, "w") as file:
        json.dump(error, file)
    return path

with scavenger_report(save=save, samples_per_epoch=640) as report:
    while report.epochs < int(sys.argv[2]):
        for share in report.batches(range(640), 32):
            time.sleep(0.001 + 0.0001 * len(share.rows))
            error *= 0.99
            told.write(json.dumps([os.getpid(), report.epochs, *share.rows]) + "\\n")
            report.step(loss=error)
        report.epoch(val_error=error)
"""
_LOGGING = """
import sys, time
epochs = int(sys.argv[1])
for step in range(1, 20 * epochs + 1):
    time.sleep(0.005)
    if step % 5 == 0:
        print(f"step {step} loss {1 / step:.4f}")
    if step % 20 == 0:
        print(f"epoch {step // 20} done, val_error {1 / step:.5f}")
open(sys.argv[2] + "/model.txt", "w").write("done")
"""


@dataclass
class Bucket:
    """A bucket of an S3 on the loopback, which the job's environment leads to."""

    name: str
    client: Any

    def files(self, folder: str) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return [one["Key"] for one in found if f"/{folder}/" in one["Key"]]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    pytest.importorskip("s3fs")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = Bucket(f"job-{uuid.uuid4()}", boto3.client("s3"))
    found.client.create_bucket(Bucket=found.name)
    yield found
    server.stop()


def _command(make_job: Callable[..., Job], program: str, **sections: Any) -> Job:
    job = make_job(elastic={"policy": "fixed"}, **sections)
    job.spec.pop("train", None)
    (job.folder / "train.py").write_text(program)
    return job.change()


def _record(job: Job) -> Any:
    return opened(job).jobs(limit=1)[0]


def _programs(mark: str, *arguments: str) -> list[psutil.Process]:
    """Processes of the command whose arguments begin so."""
    found = []
    for process in marked(mark):
        try:
            line = process.cmdline()
        except psutil.Error:  # it has ended since
            continue
        if "train.py" in line and tuple(line[line.index("train.py") + 1 :][: len(arguments)]) == arguments:
            found.append(process)
    return found


def _epochs(report: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The newest report of each epoch."""
    journal = lines(report["measurements_path"])
    return {line["epoch"]: line for line in journal if line["kind"] == "epoch"}


def test_a_command_is_searched_and_survives_the_death_of_a_process_and_of_scavenger(
    make_job: Callable[..., Job], mark: str
) -> None:
    epochs = 30
    job = _command(
        make_job,
        _PROGRAM,
        run="python train.py {local_batch_size} {workers} {rank} {checkpoint_dir} {epochs}",
        search={"workers": [1, 2], "batch_size": [32], "strategy": "full"},
        goal={"metric": "val_error", "target": 1e-9, "max_epochs": epochs, "epochs_hint": 20},
        checkpoint={"path": "./saved", "every_steps": 40},
        profile={"steps": 5},
    )
    driver = job.start()
    wait_for(lambda: _programs(mark, "16", "2", "1"), driver)  # two processes, for the second configuration
    wait_for(lambda: _record(job).phase == "running", driver)
    wait_for(lambda: _record(job).checkpoint, driver)
    _programs(mark, "16", "2", "1")[0].send_signal(signal.SIGKILL)
    time.sleep(2.0)
    wait_for(lambda: len(_programs(mark, "16", "2")) == 2, driver)
    driver.kill()
    driver.communicate()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])
    before = _record(job)

    outcome = job.ask("resume", "tiny", "--yes")
    report = outcome.report

    assert (report["job"]["state"], report["job"]["id"]) == ("target_missed", before.id), outcome.stderr
    assert report["actual"]["cost_usd"] > (before.cost_usd or 0.0) > 0.0
    journal = list(lines(report["measurements_path"]))
    assert {line["configuration"]["workers"] for line in journal if line["kind"] == "measurement"} == {1, 2}
    ends = _epochs(report)
    assert set(range(epochs // 2, epochs)) <= set(ends)
    # every step counts once, whatever was repeated: 20 steps of 32 samples make an epoch, and the error tells the steps
    assert report["steps"] == 20 * epochs
    for epoch, line in ends.items():
        assert line["metrics"]["val_error"] == pytest.approx(10.0 * 0.99 ** (20 * (epoch + 1)), rel=1e-6)
    state = json.loads(Path(report["model_path"]).read_text())
    assert (state["epoch"], state["error"]) == (epochs, pytest.approx(10.0 * 0.99 ** (20 * epochs)))


def test_a_program_that_takes_its_batches_from_the_job_is_started_once_whatever_batch_is_tried(
    make_job: Callable[..., Job],
) -> None:
    job = _command(
        make_job,
        _LIVE,
        run="python train.py {checkpoint_dir} {epochs}",
        search={"workers": [1], "batch_size": [32, 64, 128], "strategy": "full"},
        goal={"metric": "val_error", "target": 1e-9, "max_epochs": 40, "epochs_hint": 30},
        profile={"steps": 5},
    )
    outcome = job.run()
    report = outcome.report

    assert report["job"]["state"] == "target_missed", outcome.stderr
    journal = lines(report["measurements_path"])
    tried = [line["configuration"]["global_batch_size"] for line in journal if line["kind"] == "measurement"]
    assert sorted(tried) == [32, 64, 128]
    told = [json.loads(line) for line in (job.folder / "told.jsonl").read_text().splitlines()]
    assert len({pid for pid, *_ in told}) == 1
    assert {len(rows) for _, _, *rows in told} >= {32, 64, 128}
    for epoch in range(40):
        assert sorted(row for _, of, *rows in told if of == epoch for row in rows) == list(range(640))


def test_a_program_that_starts_slowly_is_started_once_if_it_trains_shortly(
    make_job: Callable[..., Job], mark: str
) -> None:
    """Its start takes as long as its training: no other configuration is worth two of them."""
    start_s, epochs = 6.0, 20
    job = _command(
        make_job,
        f"import time\ntime.sleep({start_s})\n{_PROGRAM}",
        run="python train.py {local_batch_size} {workers} {rank} {checkpoint_dir} {epochs}",
        search={"workers": [1, 2], "batch_size": [32]},
        goal={"max_epochs": epochs},
        objective="time",
        profile={"steps": 5},
    )
    first, second = job.run().report, job.run().report

    for report in (first, second):
        journal = list(lines(report["measurements_path"]))
        assert [line["configuration"]["workers"] for line in journal if line["kind"] == "view"] == [1]
        assert report["actual"]["program_start_s"] == pytest.approx(start_s, rel=0.4)
        low_s, high_s = report["predicted"]["interval"]["time_s"]
        assert low_s > start_s
        assert 0.9 * low_s <= report["actual"]["time_s"] <= 1.1 * high_s  # off by more without the start
    assert len(first["search"]["profiled"]) == 1


@pytest.mark.long
def test_an_object_store_keeps_the_checkpoints_of_processes_on_this_machine(
    make_job: Callable[..., Job], mark: str, bucket: Bucket
) -> None:
    epochs = 30
    job = _command(
        make_job,
        _PROGRAM,
        run="python train.py {local_batch_size} {workers} {rank} {checkpoint_dir} {epochs}",
        search={"workers": [2], "batch_size": [32]},
        goal={"metric": "val_error", "target": 1e-9, "max_epochs": epochs, "epochs_hint": epochs},
        checkpoint={"path": f"s3://{bucket.name}/saved", "every_steps": 40},
    )
    driver = job.start()
    wait_for(lambda: _programs(mark, "16", "2", "1"), driver)
    wait_for(lambda: _record(job).checkpoint, driver)
    _programs(mark, "16", "2", "1")[0].send_signal(signal.SIGKILL)
    time.sleep(1.0)
    wait_for(lambda: len(_programs(mark, "16", "2")) == 2, driver)
    driver.kill()
    driver.communicate()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])
    assert bucket.files("command-files")

    outcome = job.ask("resume", "tiny", "--yes")
    report = outcome.report

    assert report["job"]["state"] == "target_missed", outcome.stderr
    assert report["steps"] == 20 * epochs
    model = Path(report["model_path"])
    state = json.loads(model.read_text())
    assert (state["epoch"], state["error"]) == (epochs, pytest.approx(10.0 * 0.99 ** (20 * epochs)))
    assert list(model.parent.glob("carried*")) == []  # the folders of the processes went with them


def test_a_program_that_only_prints_is_read_by_patterns_and_ends_when_its_goal_is_reached(
    make_job: Callable[..., Job], mark: str
) -> None:
    job = _command(
        make_job,
        _LOGGING,
        run={
            "command": "python train.py {epochs} {checkpoint_dir}",
            "samples": 160,
            "log": [
                r"^step (?P<step>\d+) loss (?P<loss>\S+)",
                r"^epoch (?P<epoch1>\d+) done, val_error (?P<metric>\S+)",
            ],
        },
        search={"workers": 1, "batch_size": 8},
        goal={"metric": "val_error", "max_epochs": 8},
        profile={"steps": 5},
    )
    outcome = job.run()
    report = outcome.report

    assert report["job"]["state"] == "succeeded", outcome.stderr
    assert (report["steps"], sorted(_epochs(report))) == (160, list(range(8)))
    assert report["actual"]["step_time_s"] == pytest.approx(0.005, rel=0.6)
    assert Path(report["model_path"], "model.txt").read_text() == "done"
    assert [p for p in marked(mark) if p.pid != os.getpid()] == []


@pytest.mark.parametrize(
    ("last", "status", "words"),
    [
        ('report.epoch(val_error=0.5, done="no better")', "succeeded", "stopped by the program (no better)"),
        (
            "report.epoch(val_error=0.5); break",
            "failed",
            "ended by itself with status 0 in epoch 4 of 9, before",
        ),
    ],
)
def test_a_program_that_ends_training_by_itself_says_so(
    make_job: Callable[..., Job], last: str, status: str, words: str
) -> None:
    program = f"""
import sys
from scavenger.sdk.report import scavenger_report
with scavenger_report(save=lambda: open(sys.argv[1] + "/model", "w").close(), samples_per_epoch=40) as report:
    for epoch in range(9):
        for _ in range(5):
            report.step(loss=1.0)
        if epoch == 2:
            {last}
        else:
            report.epoch(val_error=1.0)
    report.checkpoint(open(sys.argv[1] + "/model", "w").name)
"""
    job = _command(
        make_job,
        program,
        run="python train.py {checkpoint_dir}",
        search={"workers": 1, "batch_size": 8},
        goal={"metric": "val_error", "target": 0.1, "max_epochs": 9, "epochs_hint": 5},
        profile={"steps": 3},
    )
    outcome = job.run()

    assert words in outcome.stderr.replace("\n", " "), outcome.stderr
    assert (outcome.code == 0) == (status == "succeeded")
    assert _record(job).state == status
    if status == "succeeded":
        assert (outcome.report["actual"]["epochs"], outcome.report["steps"]) == (3, 15)


def test_a_command_that_fails_is_tried_again_and_then_named_with_its_log(
    make_job: Callable[..., Job],
) -> None:
    job = _command(
        make_job,
        "raise SystemExit(3)",
        run={"command": "python train.py", "samples": 8, "log": r"(?P<step>\d+)"},
        search={"workers": 1, "batch_size": 8},
        goal={"max_epochs": 1},
    )
    job.change(elastic={"policy": "fixed", "failures": {"give_up": 2}})
    outcome = job.run()

    assert outcome.code != 0
    assert "ended with status 3 before it could train, as did 1 before it; see " in outcome.error
    refused = job.run("optimize", "--audit")
    assert "--audit: a command reads its samples itself" in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_torchrun_trains_the_example_on_one_and_two_processes_and_survives_kills(
    make_job: Callable[..., Job], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.setattr("waiting.PATIENCE_S", 240.0)  # PyTorch takes long to import on a busy machine
    job = _command(
        make_job,
        (ROOT / "examples/command_torch/train.py").read_text(),
        run="torchrun --nproc-per-node 1 train.py --batch {local_batch_size} --folder {checkpoint_dir} "
        "--epochs {epochs}",
        search={"workers": [1, 2], "batch_size": [64], "strategy": "full"},
        goal={"metric": "val_accuracy", "target": 0.96, "max_epochs": 60, "epochs_hint": 20},
        checkpoint={"path": "./saved", "every_steps": 20},
        profile={"steps": 5},
        limits={"step": "60s"},
    )
    driver = job.start()
    wait_for(lambda: _programs(mark, "--batch", "32"), driver)  # two processes of 32 samples each
    victims = [p for p in _programs(mark, "--batch", "32") if "torchrun" not in " ".join(p.cmdline())]
    wait_for(lambda: _record(job).checkpoint, driver)
    for victim in victims[:1]:
        victim.send_signal(signal.SIGKILL)
    time.sleep(10.0)
    driver.kill()
    driver.communicate()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])

    outcome = ended(job.begin("resume", "tiny", "--yes"), within_s=400.0)
    report = outcome.report

    assert report["job"]["state"] == "succeeded", outcome.stderr
    journal = list(lines(report["measurements_path"]))
    assert {line["configuration"]["workers"] for line in journal if line["kind"] == "measurement"} == {1, 2}
    assert [line for line in journal if line["kind"] == "step" and line["noise_scale"]]
    state = torch.load(report["model_path"])
    assert state["model"]["0.weight"].shape == (1024, 64)
    assert report["metric"]["value"] >= 0.96
