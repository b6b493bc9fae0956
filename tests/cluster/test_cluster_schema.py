"""What the API server takes as an ElasticJob is what Scavenger takes, as far as a structural schema can say it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from elastic_world import ElasticWorld
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from kubernetes.client.exceptions import ApiException
from test_job_schema import PLACES, POOL, REQUIRED

from scavenger.control.cluster.operating import Installation, read_job
from scavenger.domain.elastic_job import GROUP, KIND, PLURAL, VERSION
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError
from tests.cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

INSTALLATION = Installation(KubernetesSettings(image="image", usd_per_cpu_hour=0.03, usd_per_gib_hour=0.004))
OF_THE_CLUSTER = ("infra", "leader", "engine", "aggregation", "version", "name")
AROUND: list[tuple[str, Any]] = [
    *(("replicas", value) for value in (0, 1, 4096, 4097, 2.5, "3", True)),
    *(("suspend", value) for value in (True, False, "true", 1)),
    *(("image", value) for value in ("a/b:1", "a b", "", 3)),
    *(("code", value) for value in ({"path": "/a"}, {"path": "a"}, {"claim": "a"}, {}, {"configMap": "A"})),
    *(("code", value) for value in ({"path": "/a", "claim": "b"}, "x", [])),
    *(("store", value) for value in ({}, {"claim": "a"}, {"secret": "a", "claim": "b"}, {"claim": 3}, 3)),
    *(
        ("leader", value)
        for value in ({"cpus": 2}, {"cpus": 0}, {"cpus": 1.5}, {"memory": 0.5}, {"memory": 0})
    ),
]


@pytest.fixture(scope="module")
def world(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticWorld]:
    found = ElasticWorld(plane, tmp_path_factory.mktemp("schema"), "schema")
    yield found
    found.close()


def taken(world: ElasticWorld, spec: dict[str, Any]) -> dict[str, Any] | None:
    """What the API server would store; None if it refuses it as malformed."""
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": "digits"}, "spec": spec}
    try:
        made = world.objects.create_namespaced_custom_object(
            GROUP, VERSION, world.namespace, PLURAL, body, dry_run="All"
        )
    except ApiException as error:
        if error.status != 422:
            raise
        return None
    return dict(made)


def fault(made: dict[str, Any]) -> str:
    """Why Scavenger does not take it; empty if it does."""
    try:
        read_job(made, INSTALLATION)
    except (ValueError, ConfigurationError) as error:
        return str(error)
    return ""


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    place=st.sampled_from([place for place in PLACES if place[0] not in OF_THE_CLUSTER]),
    value=st.sampled_from(POOL),
)
def test_the_api_server_takes_the_forms_of_a_job_file(
    world: ElasticWorld, place: tuple[str, ...], value: Any
) -> None:
    note(f"{place}: {value!r}")
    job = json.loads(json.dumps(REQUIRED))
    job["search"] = {"workers": "1..4096", "batch_size": [2**24]}
    if place == ("elastic", "policy"):
        job["objective"] = {"utility": {"linear": {"worth": 1, "until": 1}}}
    if place == ("elastic", "failures", "cooldown"):
        job["elastic"] = {"failures": {"window": 1e-9}}
    if place == ("search", "batch_size"):
        job["search"]["workers"] = 1
    if place[0] == "resources" and place[-1] == "disk":
        job["resources"] = {"cpus": 4}
    if place == ("run",):
        del job["train"]
    section = job
    for part in place[:-1]:
        section = section.setdefault(part, {})
    section[place[-1]] = value
    spec = {"job": job, "code": {"path": "/code"}}
    made = taken(world, spec)
    own = fault({"metadata": {"name": "digits", "namespace": "schema", "uid": "u"}, "spec": spec})

    if not own:
        assert made is not None, "what Scavenger takes, the API server takes"
    elif made is not None:
        stored = fault(made)
        # a schema cannot say that keys are at odds, that an item is there twice, or that an unknown key is a fault
        assert not stored or at_odds(stored), stored


def at_odds(words: str) -> bool:
    """Whether a fault is one of those that only Scavenger can find."""
    known = (
        *(
            "unknown key",
            "twice",
            "needs",
            "must be above",
            "must be below",
            "must have exactly",
            "spans",
            "must reach",
        ),
        *("is missing", "expression", "at least", "must not", "only", "must be a name", "must be one of"),
        *("must hold", "must be a mapping", "is for", "with infra", "needs the", "must be text or"),
        "is no size of a pod",
    )
    return any(one in words for one in known)


@pytest.mark.parametrize(("key", "value"), AROUND)
def test_what_stands_around_the_job_is_taken_by_both_or_by_none(
    world: ElasticWorld, key: str, value: Any
) -> None:
    job = {**REQUIRED, "resources": {"cpus": 2, "memory": 4}, "search": {"batch_size": 4096}}
    spec = {"job": job, "code": {"path": "/code"}, key: value}
    own = fault({"metadata": {"name": "digits", "namespace": "schema", "uid": "u"}, "spec": spec})

    assert (taken(world, spec) is None) == bool(own), own
