"""The server that stands for Compute Engine refuses what Google does not know, in its own answers too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("requests")
pytest.importorskip("googleapiclient")

import requests
from gcp_server import ComputeServer
from gcp_state import PROJECT, Clock, Machine

ZONE = "us-central1-a"
AT = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}"
KEY = "a6f1e3c2-0000-4000-8000-000000000001"


@pytest.fixture
def clock(compute: ComputeServer) -> Clock:
    clock = Clock()
    compute.reset(clock)
    return clock


def ask(compute: ComputeServer, verb: str, path: str, body: Any = None, **query: str) -> Any:
    return requests.request(verb, compute.endpoint + path, json=body, params=query, timeout=10)


def vm(**changes: Any) -> dict[str, Any]:
    image = {"sourceImage": "projects/x/global/images/y", "diskSizeGb": "20"}
    return {
        "name": "a-vm",
        "machineType": f"zones/{ZONE}/machineTypes/e2-standard-4",
        "disks": [{"boot": True, "initializeParams": image}],
        "networkInterfaces": [{}],
    } | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colour": "red"}, 'Unknown name "colour"'),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "scheduling.provisioningModel"),
        ({"scheduling": {"maxRunDuration": {"seconds": "soon"}}}, "maxRunDuration.seconds"),
        ({"scheduling": {"maxRunDuration": {"seconds": "60"}}}, "instanceTerminationAction"),
        ({"labels": {"Team": "x"}}, "labels"),
        ({"name": "A_VM"}, "name"),
        ({"networkInterfaces": []}, "networkInterfaces"),
        ({"machineType": f"zones/{ZONE}/machineTypes/e2-custom-3-4096"}, "machineType"),
    ],
)
def test_a_body_that_google_would_refuse_is_refused_in_its_form(
    compute: ComputeServer, clock: Clock, changes: dict[str, Any], words: str
) -> None:
    reply = ask(compute, "POST", f"{AT}/instances", vm(**changes))
    error = reply.json()["error"]

    assert (reply.status_code, error["code"]) == (400, 400)
    assert words in error["message"]
    assert error["errors"][0]["reason"]
    assert compute.project.machines == {}


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        (f"{AT}/instances/x", {"colour": "red"}, 400),
        (f"{AT}/operations", {"maxResults": "many"}, 400),
        (f"{AT}/operations", {"filter": "status is DONE"}, 400),
        (f"{AT}/instances/Not_A_Name", {}, 404),
        ("/compute/v1/projects/a-project/planets", {}, 404),
        ("/compute/v1/projects/other/zones/us-central1-a/instances/x", {}, 404),
    ],
)
def test_a_path_or_parameter_that_google_does_not_have_is_refused(
    compute: ComputeServer, clock: Clock, path: str, query: dict[str, str], status: int
) -> None:
    assert ask(compute, "GET", path, **query).status_code == status


def test_the_server_notices_its_own_answers_that_google_could_not_give(
    compute: ComputeServer, clock: Clock
) -> None:
    machine = Machine(5, "odd", ZONE, {"machineType": "x/e2-standard-4", "colour": "red"}, clock())
    compute.project.machines[5] = machine
    ask(compute, "GET", f"{AT}/instances/odd")
    machine.body = {"machineType": "x/e2-standard-4", "shieldedInstanceConfig": {"enableVtpm": "yes"}}
    ask(compute, "GET", f"{AT}/instances/odd")

    assert len(compute.faults_of_ours) == 2
    assert "colour" in compute.faults_of_ours[0]
    assert "enableVtpm" in compute.faults_of_ours[1]


def test_an_insert_is_one_operation_that_waits_runs_and_is_done(compute: ComputeServer, clock: Clock) -> None:
    first = ask(compute, "POST", f"{AT}/instances", vm(), requestId=KEY).json()
    seen = []
    for _ in range(3):
        seen.append(ask(compute, "GET", f"{AT}/operations/{first['name']}").json()["status"])
        clock.advance(5)
    again = ask(compute, "POST", f"{AT}/instances", vm(), requestId=KEY).json()

    assert seen == ["PENDING", "RUNNING", "DONE"]
    assert (again["name"], again["targetId"]) == (first["name"], first["targetId"])
    assert isinstance(again["targetId"], str)
    assert ask(compute, "POST", f"{AT}/instances", vm()).status_code == 409
    assert len(compute.project.machines) == 1


def test_pages_hold_all_of_it_once(compute: ComputeServer, clock: Clock) -> None:
    for number in range(12):
        ask(compute, "POST", f"{AT}/instances", vm(name=f"vm-{number}"))
    names: list[str] = []
    token = ""
    while True:
        query = {"pageToken": token} if token else {}
        page = ask(compute, "GET", f"{AT}/operations", **query).json()
        assert len(page["items"]) <= compute.page_max
        names += [each["targetLink"].rpartition("/")[2] for each in page["items"]]
        token = page.get("nextPageToken", "")
        if not token:
            break

    assert sorted(names) == sorted(f"vm-{number}" for number in range(12))


def test_a_vm_is_deleted_at_its_own_limit(compute: ComputeServer, clock: Clock) -> None:
    limit = {"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}
    ask(compute, "POST", f"{AT}/instances", vm(scheduling=limit))
    states = []
    for _ in range(4):
        reply = ask(compute, "GET", f"{AT}/instances/a-vm")
        states.append(reply.json()["status"] if reply.ok else reply.status_code)
        clock.advance(3520 if len(states) == 2 else 100)

    assert states == ["PROVISIONING", "RUNNING", "STOPPING", 404]
