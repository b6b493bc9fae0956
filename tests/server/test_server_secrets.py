"""What a job was given and what its program prints: no route gives it in clear to others."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from fastapi import FastAPI
from server_world import World, submission
from starlette.testclient import TestClient

from scavenger.masking import MASK
from scavenger.store import Store
from scavenger.store.record_file import RECORD_FILE

TOKEN, PASSWORD = "hf_abcdefghijklmnopqrstuvwxyz", "hunter2-of-ann"
SPEC = {
    "params": {"hub": TOKEN, "db": f"postgresql://ann:{PASSWORD}@db/x", "db_password": PASSWORD, "lr": 0.1}
}


def job_of_ann(store: Store, folder: Path) -> str:
    """A job with secrets in its file, whose program has printed one; its folder is that of a running job."""
    file = folder / "given.yaml"
    queued = store.submit(submission("ann", file, "given"))
    job = store.create_job("given", spec=SPEC, job_file=file, job_id=queued.id)
    store.add_event(job.id, "note", f"using {TOKEN}")
    outputs = folder / ".scavenger" / job.id
    (outputs / "logs").mkdir(parents=True)
    (outputs / "logs" / "w0.log").write_bytes(f"key {TOKEN}\nstep 1\n\xff".encode("latin-1"))
    (outputs / RECORD_FILE).write_text(json.dumps(SPEC))
    (outputs / "model").symlink_to("logs/w0.log")  # as a command's leads to its checkpoint
    return job.id


def test_no_route_tells_them(
    app: FastAPI, client: TestClient, store: Store, world: World, tmp_path: Path
) -> None:
    job = job_of_ann(store, tmp_path)
    of_jobs = [path for path, item in app.openapi()["paths"].items() if "get" in item and "{job}" in path]
    paths = [*of_jobs, "/v1/jobs", "/v1/queue", "/v1/costs", "/v1/models", f"/jobs/{job}", "/"]
    asked = 0
    for user in ("ann", "eve", "root"):
        for path in paths:
            # the archive is for who goes on with the job; the stream ends with the job
            if "{" in path.replace("{job}", "") or path.endswith(("/outputs", "/stream")):
                continue
            answer = client.get(path.replace("{job}", job), headers=world.headers(user))
            asked += answer.status_code == 200
            assert TOKEN not in answer.text, path
            assert PASSWORD not in answer.text, path
    assert asked >= 30
    shown = client.get(f"/v1/jobs/{job}", headers=world.headers("eve")).json()["job"]["spec"]["params"]
    assert shown == {"hub": MASK, "db": f"postgresql://{MASK}@db/x", "db_password": MASK, "lr": 0.1}


def test_outputs_are_for_the_jobs_user_and_admins_and_their_logs_have_none(
    client: TestClient, store: Store, world: World, tmp_path: Path
) -> None:
    job = job_of_ann(store, tmp_path)
    statuses = {}
    for user in ("ann", "bob", "eve", "root"):
        answer = client.get(f"/v1/jobs/{job}/outputs", headers=world.headers(user))
        statuses[user] = answer.status_code
        if answer.status_code != 200:
            assert TOKEN not in answer.text
            continue
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            log = tar.extractfile(f"{job}/logs/w0.log")
            assert log is not None
            assert log.read() == f"key {MASK}\nstep 1\n\xff".encode("latin-1")
            assert sorted(tar.getnames()) == [
                job,
                f"{job}/logs",
                f"{job}/logs/w0.log",
                f"{job}/model",
                f"{job}/{RECORD_FILE}",
            ]
            assert tar.getmember(f"{job}/model").linkname == "logs/w0.log"
    assert statuses == {"ann": 200, "bob": 404, "eve": 403, "root": 200}


def test_models_that_predict_for_all_are_changed_by_admins(
    client: TestClient, store: Store, world: World
) -> None:
    document = {"schema_version": 1, "models": []}
    for user in ("ann", "eve"):
        refused = client.post("/v1/models/import", headers=world.headers(user), json=document)
        assert refused.status_code == 403
