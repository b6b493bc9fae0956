"""Google Cloud: one VM for each token, whatever goes wrong, and every fault told for what it is."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from made_intents import made_request

pytest.importorskip("google.cloud.compute_v1")
pytest.importorskip("googleapiclient")

from gcp_discovery import RefusedError
from gcp_server import ROLE, ComputeServer
from gcp_state import EPOCH, LIMITS, PROJECT, QUOTA_OF, REGION, Machine
from gcp_world import DAY_S, ZONE, GcpWorld, provider_of, world_on
from google.api_core.exceptions import GoogleAPICallError, from_http_status
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from scavenger import errors
from scavenger.cloud.catalog.snapshot import read_snapshot
from scavenger.cloud.gcp.adapter import gpus_of
from scavenger.cloud.gcp.errors import translated_errors
from scavenger.cloud.gcp.provider import ENDPOINT_VARIABLE, GcpProvider
from scavenger.cloud.quotas import vms_left, vms_left_of_either
from scavenger.domain.vm import VmRequest
from scavenger.testing.provider_conformance import LONG_S, OWNER, make_request, token_of

L4S, SPOT_L4S, SPOT_CPUS = "NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS", "PREEMPTIBLE_CPUS"


@pytest.fixture
def world(compute: ComputeServer) -> Iterator[GcpWorld]:
    yield from world_on(compute)


def refusal(status: int, reason: str) -> GoogleAPICallError:
    return from_http_status(status, "GET x: no", errors=[{"reason": reason, "message": "No."}])


# Launching once


def test_a_token_is_known_for_longer_than_google_knows_the_request(world: GcpWorld) -> None:
    request = make_request(world)
    first = world.provider.launch(request)
    world.advance(2 * DAY_S)
    assert world.provider.launch(request).instance_id == first.instance_id
    world.provider.terminate(first.instance_id, first.zone)
    world.advance(2 * DAY_S)

    with pytest.raises(errors.GoneError):
        world.provider.launch(request)

    assert world.server.calls["instances.insert"] == 1


def test_a_vm_whose_insert_nobody_remembers_is_adopted_by_its_name(world: GcpWorld) -> None:
    first = world.provider.launch(make_request(world))
    world.advance(10 * DAY_S)
    world.server.project.operations.clear()

    assert world.provider.launch(make_request(world)).instance_id == first.instance_id


def test_a_foreign_vm_of_the_same_name_is_not_taken_for_ours(world: GcpWorld) -> None:
    request = make_request(world)
    first = world.provider.launch(request)
    machine = world.server.project.machines[int(first.instance_id)]
    machine.body["labels"] = {}
    world.server.project.operations.clear()
    world.advance(DAY_S)

    with pytest.raises(errors.ConfigurationError, match="not Scavenger's"):
        world.provider.launch(request)


def test_a_token_that_found_no_stock_may_be_launched_when_there_is_some(world: GcpWorld) -> None:
    request = make_request(world)
    world.stock_out(ZONE)
    for _ in range(2):
        with pytest.raises(errors.StockOutError):
            world.provider.launch(request)
    world.stock_out(ZONE, on=False)

    seen = world.provider.launch(request)

    assert seen.tags.token == request.tags.token
    assert world.provider.launch(request).instance_id == seen.instance_id

    world.provider.terminate(seen.instance_id, seen.zone)
    world.advance(2 * DAY_S)
    with pytest.raises(errors.GoneError):
        world.provider.launch(request)


def test_a_family_that_takes_no_time_of_notice_gets_spot_vms_without_it(world: GcpWorld) -> None:
    project = world.server.project
    project.without_notice = {"e2"}
    request = make_request(world, spot=True)
    first = world.provider.launch(request)

    (machine,) = project.alive()
    assert first.spot
    assert "preemptionNoticeDuration" not in machine.body["scheduling"]
    assert world.provider.launch(request).instance_id == first.instance_id
    other = provider_of(world.server, world.clock)  # another process, which does not know of it
    assert other.launch(request).instance_id == first.instance_id
    world.provider.launch(make_request(world, 2, spot=True))
    assert world.server.calls["instances.insert"] == 3  # the refused one, and one for each VM


def test_a_token_whose_insert_no_list_shows_yet_is_known_by_its_request(world: GcpWorld) -> None:
    request = make_request(world)
    first = world.provider.launch(request)
    world.hide(DAY_S)
    world.provider.terminate(first.instance_id, first.zone)
    world.advance(LONG_S)

    with pytest.raises(errors.GoneError):
        world.provider.launch(request)

    assert world.server.project.alive() == []


def test_an_insert_that_another_overtook_returns_the_other_s_vm(world: GcpWorld) -> None:
    request = make_request(world)
    project = world.server.project
    project.breaks.append(("RESOURCE_ALREADY_EXISTS", 409))

    def sleep(seconds: float) -> None:
        world.clock.advance(seconds)
        (failed,) = [each for each in project.machines.values() if each.id != 77]
        project.machines[77] = Machine(77, failed.name, ZONE, failed.body, world.clock())
        failed.gone_at = world.clock()

    provider = provider_of(world.server, world.clock, sleep=sleep)

    assert provider.launch(request).instance_id == "77"


def test_a_vm_is_known_by_its_number_not_by_a_name_that_was_given_again(world: GcpWorld) -> None:
    first = world.provider.launch(make_request(world))
    world.provider.terminate(first.instance_id, first.zone)
    world.advance(LONG_S)
    again = world.server.project.insert(ZONE, world.server.project.machines[int(first.instance_id)].body, "")
    world.advance(LONG_S)

    world.provider.terminate(first.instance_id, first.zone)

    assert [each.id for each in world.server.project.alive()] == [again.target_id]
    assert world.provider.describe(first.instance_id, first.zone).state == "gone"


def test_the_end_of_a_deleted_vm_is_told_by_its_operation_as_long_as_the_zone_remembers_it(
    world: GcpWorld,
) -> None:
    first, other = (world.provider.launch(make_request(world, number)) for number in range(2))
    world.advance(LONG_S)
    asked_at = EPOCH + timedelta(seconds=world.clock())
    world.provider.terminate(first.instance_id, first.zone)
    world.advance(LONG_S)
    world.provider.terminate(other.instance_id, other.zone)
    world.advance(LONG_S)

    seen = world.provider.describe(first.instance_id, first.zone)
    took_s = world.server.project.deleted_after_s
    assert (seen.state, seen.ended_at) == ("gone", asked_at + timedelta(seconds=took_s))
    world.server.faults.plan("fail", 9, "zoneOperations.list")
    with pytest.raises(errors.GoneError):
        world.provider.describe(first.instance_id, first.zone)
    world.server.faults.plan("fail", 0)
    world.advance(30 * DAY_S)
    with pytest.raises(errors.GoneError):
        world.provider.describe(first.instance_id, first.zone)


def test_a_vm_that_powered_itself_off_ended_then_and_its_disk_when_it_was_deleted(world: GcpWorld) -> None:
    first, other = (world.provider.launch(make_request(world, number, spot=True)) for number in range(2))
    world.advance(LONG_S)
    began_at, project = EPOCH + timedelta(seconds=world.clock()), world.server.project
    with project.lock:
        project.power_off(project.find(first.zone, first.instance_id))
        project.preempt(int(other.instance_id))
    world.advance(LONG_S)
    assert world.provider.describe(first.instance_id, first.zone).ended_at == began_at
    world.provider.terminate(first.instance_id, first.zone)
    world.advance(LONG_S)

    seen = world.provider.describe(first.instance_id, first.zone)
    assert (seen.state, seen.ended_at) == ("gone", began_at)
    assert seen.disk_after_s == LONG_S + project.deleted_after_s
    taken = world.provider.describe(other.instance_id, other.zone)
    assert (taken.state, taken.disk_after_s) == ("gone", 0.0)
    assert taken.ended_at == began_at + timedelta(seconds=project.preempted_after_s)


@pytest.mark.parametrize("fault", ["fail", "throttle", "lose", "garble"])
def test_an_accepted_insert_is_followed_through_faults(world: GcpWorld, fault: str) -> None:
    world.server.faults.plan(fault, 3, "zoneOperations.get")

    seen = world.provider.launch(make_request(world))

    assert world.faults_fired == 3
    assert seen.state == "running"
    assert world.server.calls["instances.insert"] == 1


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        ("fail", "zoneOperations.get"),
        ("throttle", "zoneOperations.get"),
        ("deny", "zoneOperations.get"),
        ("deny", "instances.get"),
        ("throttle", "instances.get"),
        ("garble", "instances.insert"),
    ],
)
def test_after_an_accepted_insert_no_fault_says_that_there_is_no_vm(
    world: GcpWorld, fault: str, method: str
) -> None:
    request = make_request(world)
    world.server.faults.plan(fault, 1_000, method)

    with pytest.raises(errors.CloudUnavailableError) as caught:
        world.provider.launch(request)
    world.server.faults.plan(fault, 0)

    assert type(caught.value) is errors.CloudUnavailableError
    assert [world.provider.launch(request).instance_id] == [
        str(each.id) for each in world.server.project.alive()
    ]


def test_an_insert_whose_operation_is_forgotten_is_looked_up_by_name(world: GcpWorld) -> None:
    clock = world.clock

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        world.server.project.operations.clear()

    provider = provider_of(world.server, clock, sleep=sleep)

    assert provider.launch(make_request(world)).tags.token == token_of(0)


# What an operation's error means


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", 503, errors.StockOutError),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 0, errors.StockOutError),
        ("QUOTA_EXCEEDED", 403, errors.QuotaError),
        ("RATE_LIMIT_EXCEEDED", 0, errors.ThrottledError),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", 403, errors.ThrottledError),
        ("PERMISSIONS_ERROR", 0, errors.CredentialsError),
        ("WHATEVER", 403, errors.CredentialsError),
        ("INVALID_FIELD_VALUE", 0, errors.ConfigurationError),
        ("UNSUPPORTED_OPERATION", 400, errors.ConfigurationError),
        ("RESOURCE_NOT_FOUND", 404, errors.ConfigurationError),
        ("INTERNAL_ERROR", 500, errors.CloudUnavailableError),
        ("SOMETHING_NEW", 0, errors.CloudUnavailableError),
    ],
)
def test_the_error_of_an_operation_is_told_for_what_it_is(
    world: GcpWorld, code: str, status: int, error: type[errors.ScavengerError]
) -> None:
    request = make_request(world)
    world.server.project.breaks.append((code, status))

    with pytest.raises(error) as caught:
        world.provider.launch(request)

    assert type(caught.value) is error
    assert code in str(caught.value)
    assert world.server.project.alive() == []
    assert world.provider.launch(request).tags.token == request.tags.token


def test_a_quota_that_the_operation_tells_of_is_named_by_its_metric(world: GcpWorld) -> None:
    world.limit(0)
    world.server.project.quota_late = True

    with pytest.raises(errors.QuotaError) as caught:
        world.provider.launch(make_request(world))

    assert caught.value.quota == "compute.googleapis.com/instances"
    assert caught.value.quota in str(caught.value)


def test_quotas_leave_out_what_does_not_bear_on_vms(world: GcpWorld) -> None:
    assert {quota.name for quota in world.provider.quotas()} == {"INSTANCES"} | {
        name for name in LIMITS if not name.startswith("COMMITTED_")
    }


@pytest.mark.parametrize(
    ("vm", "cpus", "spot", "limits", "left", "quota"),
    [
        ("g2-standard-24", 24, False, {SPOT_L4S: 2.0}, 4, L4S),
        ("g2-standard-24", 24, True, {SPOT_L4S: 2.0}, 1, SPOT_L4S),
        ("g2-standard-24", 24, True, {SPOT_L4S: 0.0, L4S: 6.0}, 3, L4S),
        ("g2-standard-24", 24, False, {"GPUS_ALL_REGIONS": 5.0}, 2, "GPUS_ALL_REGIONS"),
        ("g2-standard-24", 24, True, {"GPUS_ALL_REGIONS": 0.0}, 0, "GPUS_ALL_REGIONS"),
        ("g2-standard-24", 24, True, {"CPUS": 8.0, SPOT_CPUS: 8.0}, 4, SPOT_L4S),
        ("n2-standard-8", 8, False, {"N2_CPUS": 16.0, "CPUS": 8.0}, 2, "N2_CPUS"),
        ("e2-standard-4", 4, False, {"E2_CPUS": 0.0, "CPUS": 8.0}, 2, "CPUS"),
        ("n2-standard-8", 8, True, {SPOT_CPUS: 8.0, "N2_CPUS": 0.0}, 1, SPOT_CPUS),
        ("n2-standard-8", 8, True, {SPOT_CPUS: 0.0, "N2_CPUS": 16.0}, 2, "N2_CPUS"),
        ("e2-standard-4", 4, True, {SPOT_CPUS: 0.0, "CPUS": 4.0}, 1, "CPUS"),
    ],
)
def test_as_many_vms_start_as_the_quotas_were_said_to_leave(
    world: GcpWorld, vm: str, cpus: int, spot: bool, limits: dict[str, float], left: int, quota: str
) -> None:
    world.server.project.limits |= limits
    found = vms_left("gcp", world.provider.quotas(), vm, cpus, spot=spot)
    for number in range(left):
        world.provider.launch(make_request(world, number, vm=vm, spot=spot))
    with pytest.raises(errors.QuotaError) as caught:
        world.provider.launch(make_request(world, left, vm=vm, spot=spot))

    assert found is not None
    assert (found[0], found[1].name, caught.value.quota) == (left, quota, quota)


def test_spot_vms_without_a_quota_of_their_own_share_that_of_vms_on_demand(world: GcpWorld) -> None:
    world.server.project.limits |= {SPOT_CPUS: 0.0, "CPUS": 12.0}
    either = vms_left_of_either("gcp", world.provider.quotas(), "e2-standard-4", 4)
    world.provider.launch(make_request(world, 0, spot=True))
    world.provider.launch(make_request(world, 1))
    on_demand = vms_left("gcp", world.provider.quotas(), "e2-standard-4", 4, spot=False)

    assert (either and either[0], on_demand and on_demand[0]) == (3, 1)


@pytest.mark.parametrize("spot_cpus", [0.0, 1.0])
def test_every_machine_type_of_the_catalogue_starts_as_often_as_its_quotas_were_said_to_leave(
    world: GcpWorld, monkeypatch: pytest.MonkeyPatch, spot_cpus: float
) -> None:
    places = [types for (provider, _), types in read_snapshot().listings.items() if provider == "gcp"]
    catalogue = {name: entry.machine for types in places for name, entry in types.items()}
    monkeypatch.setattr("gcp_state.TYPES", {name: (each.cpus, 8192) for name, each in catalogue.items()})
    monkeypatch.setattr("gcp_state.GPUS", {name: each.accelerators for name, each in catalogue.items()})
    project = world.server.project
    world.provider.launch(make_request(world))
    (sample,) = project.alive()
    world.limit(3)
    project.limits["E2_CPUS"] = 0.0
    counted = {name for name in QUOTA_OF.values() if name.endswith("CPUS")}
    by_quota = Counter[str]()
    for cpus in sorted({each.cpus for each in catalogue.values()}):
        project.machines.clear()
        project.limits |= dict.fromkeys(counted, 2.0 * cpus) | {SPOT_CPUS: spot_cpus * cpus}
        quotas = world.provider.quotas()
        for name, spot in itertools.product(
            (n for n, each in catalogue.items() if each.cpus == cpus), (False, True)
        ):
            found = vms_left("gcp", quotas, name, cpus, spot=spot)
            assert found is not None
            body = sample.body | {"machineType": f"zones/{ZONE}/machineTypes/{name}"}
            body["scheduling"] = {
                "provisioningModel": "SPOT" if spot else "STANDARD",
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": False,
            }
            project.machines.clear()
            for number in range(found[0]):
                project.insert(ZONE, body | {"name": f"vm-{number}"}, "")
            with pytest.raises(RefusedError, match=f"Quota '{found[1].name}' exceeded"):
                project.insert(ZONE, body | {"name": "one-too-many"}, "")
            by_quota[found[1].name] += 1

    assert by_quota.keys() >= {"CPUS", "N2_CPUS", "M3_CPUS", "INSTANCES"}
    assert (by_quota[SPOT_CPUS] > 0) == (spot_cpus > 0)


def test_a_project_that_may_not_be_read_still_has_the_quotas_of_its_region(
    world: GcpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcp_server.ROLE", ROLE - {"compute.projects.get"})

    assert {"CPUS", "NVIDIA_L4_GPUS"} <= {quota.name for quota in world.provider.quotas()}


def test_every_machine_type_with_gpus_of_the_catalogue_counts_against_their_quota() -> None:
    places = [types for (provider, _), types in read_snapshot().listings.items() if provider == "gcp"]
    for machine in {entry.machine for types in places for entry in types.values()}:
        quota, gpus = gpus_of(machine.name, machine.cpus)
        assert gpus == machine.accelerators, machine.name
        assert not gpus or quota.startswith(f"NVIDIA_{machine.accelerator.replace('-', '_')}_"), machine.name


# Time limits and odd answers


def test_a_call_that_is_never_answered_ends(compute: ComputeServer, world: GcpWorld) -> None:
    provider = provider_of(compute, world.clock, call_timeout_s=0.2)
    compute.faults.plan("hang", 1_000)
    calls = {
        "launch": lambda: provider.launch(make_request_in(ZONE)),
        "describe": lambda: provider.describe("1", ZONE),
        "terminate": lambda: provider.terminate("1", ZONE),
        "list_owned": lambda: provider.list_owned(OWNER),
        "quotas": provider.quotas,
        "zones": lambda: provider.zones("e2-standard-4"),
        "remove_leftovers": lambda: provider.remove_leftovers(OWNER),
    }
    outcomes: dict[str, type[BaseException]] = {}

    def ask(name: str) -> None:
        try:
            calls[name]()
        except errors.CloudError as error:
            outcomes[name] = type(error)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    for patience_s, thread in enumerate(reversed(threads)):
        thread.join(10 if patience_s == 0 else 0.5)

    assert outcomes == dict.fromkeys(calls, errors.CloudUnavailableError)


def test_the_library_repeats_nothing_by_itself(world: GcpWorld) -> None:
    world.fail(1_000)
    for call in (
        lambda: world.provider.describe("1", ZONE),
        lambda: world.provider.list_owned(OWNER),
        world.provider.quotas,
    ):
        before = world.faults_fired
        with pytest.raises(errors.CloudUnavailableError):
            call()
        assert world.faults_fired == before + 1


def test_pages_without_end_end(compute: ComputeServer, world: GcpWorld) -> None:
    provider = provider_of(compute, world.clock, operation_timeout_s=100.0)
    for name in range(3):
        world.provider.launch(make_request(world, name))
    compute.endless, compute.on_call = True, lambda: world.advance(10.0)

    with pytest.raises(errors.CloudUnavailableError, match="100 s"):
        provider.list_owned(OWNER)


def test_an_answer_that_is_cut_off_is_no_answer(world: GcpWorld) -> None:
    world.server.faults.plan("garble", 1)

    with pytest.raises(errors.CloudUnavailableError):
        world.provider.list_owned(OWNER)


def test_nobody_there_is_no_answer() -> None:
    provider = GcpProvider(PROJECT, REGION, environment={ENDPOINT_VARIABLE: "http://127.0.0.1:9"})

    with pytest.raises(errors.CloudUnavailableError):
        provider.list_owned(OWNER)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (DefaultCredentialsError("none found"), errors.CredentialsError),
        (RefreshError("invalid_grant"), errors.CredentialsError),
        (RefreshError("later", retryable=True), errors.CloudUnavailableError),
        (TransportError("no route"), errors.CloudUnavailableError),
        (refusal(401, "authError"), errors.CredentialsError),
        (refusal(403, "accessNotConfigured"), errors.CredentialsError),
        (refusal(403, "RATE_LIMIT_EXCEEDED"), errors.ThrottledError),
        (refusal(429, "busy"), errors.ThrottledError),
        (refusal(403, "quotaExceeded"), errors.QuotaError),
        (refusal(503, "ZONE_RESOURCE_POOL_EXHAUSTED"), errors.StockOutError),
        (refusal(409, "aborted"), errors.CloudUnavailableError),
        (refusal(412, "conditionNotMet"), errors.ConfigurationError),
        (refusal(404, "notFound"), errors.ConfigurationError),
    ],
)
def test_what_the_library_raises_is_told_for_what_it_is(
    raised: Exception, error: type[errors.ScavengerError]
) -> None:
    with (
        pytest.raises(error) as caught,
        translated_errors("x", region=REGION, location=REGION, refused=errors.ConfigurationError),
    ):
        raise raised

    assert type(caught.value) is error


def test_missing_credentials_are_told_with_the_way_to_some() -> None:
    with (
        pytest.raises(errors.CredentialsError, match="gcloud auth"),
        translated_errors("x", region=REGION, location=REGION),
    ):
        raise DefaultCredentialsError("none found")


def make_request_in(zone: str) -> VmRequest:
    return made_request(token=token_of("hang"), owner=OWNER, vm="e2-standard-4", zone=zone)
