"""The definition of ElasticJob, and the job that one stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scavenger.control.cluster.crd import crd, crd_yaml
from scavenger.control.cluster.operating import Installation, leader_of, read_job
from scavenger.control.settings import parse_settings
from scavenger.domain.job import JobSpec
from scavenger.domain.pool_settings import PoolSettings, pools_of
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError, JobFileError

FILE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "crd.yaml"
SETTINGS = KubernetesSettings(image="image", usd_per_cpu_hour=0.03, usd_per_gib_hour=0.004, labels={"a": "b"})
INSTALLATION = Installation(SETTINGS)
JOB: dict[str, Any] = {"train": "train:job", "goal": {"max_epochs": 3}, "resources": {"cpus": 2, "memory": 4}}

POOLED: dict[str, Any] = {"pool": "gpu", "store": {"claim": "c"}}


def elastic_job(**spec: Any) -> dict[str, Any]:
    meta = {"name": "digits", "namespace": "training", "uid": "u-1", "generation": 1}
    return {"metadata": meta, "spec": {"job": JOB, "code": {"path": "/code"}, **spec}}


def test_the_file_is_what_the_command_prints_and_yaml_reads_it_as_the_definition() -> None:
    assert FILE.read_text() == crd_yaml(), "run: scavenger operator crd > deploy/kubernetes/crd.yaml"
    assert YAML(typ="safe").load(FILE.read_text()) == crd()


def test_the_definition_is_structural() -> None:
    """The rules of the API server, so that they are known without one."""

    def check(schema: dict[str, Any], at: str, *, whole: bool) -> None:
        assert not {"$ref", "$defs", "default", "uniqueItems", "const", "examples"} & schema.keys(), at
        free = schema.get("x-kubernetes-preserve-unknown-fields", False)
        assert (("type" in schema) or free) == whole or not whole, at
        if not whole:
            assert (
                not {"type", "properties", "items", "additionalProperties", "description"} & schema.keys()
            ), at
        for key, one in schema.get("properties", {}).items():
            check(one, f"{at}.{key}", whole=True)
        if "items" in schema:
            check(schema["items"], f"{at}[]", whole=True)
        for junctor in ("allOf", "anyOf", "oneOf"):
            for one in schema.get(junctor, ()):
                check(one, f"{at}/{junctor}", whole=False)

    check(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", whole=True)


def test_every_key_of_a_job_file_is_in_it_but_those_that_a_cluster_decides() -> None:
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    keys = set(schema["properties"]["spec"]["properties"]["job"]["properties"])

    assert set(JobSpec.model_fields) - keys == {"leader", "engine", "aggregation"}


def test_replicas_are_the_only_size_that_is_searched_and_no_policy_changes_them() -> None:
    _, document = read_job(elastic_job(replicas=6), INSTALLATION)
    job = JobSpec.model_validate(document)

    assert job.worker_counts == (6,)
    assert job.elastic_range == (1, 6)
    assert job.elastic.policy == "fixed"


def test_without_replicas_the_job_file_says_what_is_searched() -> None:
    _, document = read_job(elastic_job(job={**JOB, "search": {"workers": "2..5"}}), INSTALLATION)
    job = JobSpec.model_validate(document)

    assert job.worker_counts == (2, 3, 4, 5)
    assert job.elastic.policy == "model"
    assert job.checkpoint is not None


def test_the_jobs_own_settings_of_pods_stand_before_those_of_the_operator() -> None:
    job = {**JOB, "infra": {"usd_per_cpu_hour": 0.5, "labels": {"c": "d"}}}
    _, document = read_job(elastic_job(job=job, image="mine"), INSTALLATION)

    assert document["infra"] == {
        "at": "kubernetes",
        "namespace": "training",
        "image": "mine",
        "usd_per_cpu_hour": 0.5,
        "usd_per_gib_hour": 0.004,
        "labels": {"a": "b", "c": "d", "scavenger.dev/elasticjob": "digits"},
    }


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"job": {**JOB, "infra": "aws/us-east-1"}}, "spec.job.infra: an ElasticJob runs in its cluster"),
        ({"job": {**JOB, "sarch": {}}}, "unknown key"),
        ({"job": {**JOB, "goal": {"max_epochs": 0}}}, "goal.max_epochs must be at least 1"),
        ({"code": {"path": "/a", "claim": "b"}}, "exactly one of: path, configMap, claim"),
        ({"replicas": 0}, "spec.replicas: "),
        ({"replicas": 6, "job": {**JOB, "elastic": {"max": 4}}}, "elastic"),
        (POOLED | {"replicas": 2}, "spec.replicas: must be left out: pool gpu decides"),
        (POOLED | {"store": {}}, "spec.store.claim: must be given: a job of a pool may be paused"),
        (POOLED, "spec.pool: there is no pool gpu"),
    ],
)
def test_what_is_no_job_is_one_line_with_its_place(spec: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, ConfigurationError), match=words) as raised:
        read_job(elastic_job(**spec), INSTALLATION)
    assert "\n" not in str(raised.value)


def test_the_pods_of_a_pool_are_its_slots() -> None:
    pools = {"gpu": PoolSettings(nodes={"pool": "x"}, vm="4cpu-16gib"), "any": PoolSettings(slots=3)}
    job = {
        **JOB,
        "infra": {"node_labels": {"zone": "a"}},
        "resources": {"cpus": 2, "disk": 50},
        "spot": "always",
    }
    _, document = read_job(elastic_job(**POOLED, job=job), Installation(SETTINGS, pools=pools))

    assert document["infra"]["node_labels"] == {"zone": "a", "pool": "x"}
    assert (document["resources"], document["spot"]) == ({"vm": "4cpu-16gib", "disk": 50}, "never")
    _, other = read_job(
        elastic_job(**{**POOLED, "pool": "any"}, job=job), Installation(SETTINGS, pools=pools)
    )
    assert (other["resources"], other["spot"]) == (job["resources"], "always")


@pytest.mark.parametrize("pool", [None, "any", "gpu"])
def test_pods_with_gpus_are_refused_before_anything_starts_until_they_are_agreed_to(pool: str | None) -> None:
    pools = {"gpu": PoolSettings(nodes={}, vm="8cpu-64gib-2gpu"), "any": PoolSettings(slots=3)}
    size = {} if pool == "gpu" else {"resources": {"any_of": ["4cpu-16gib", "8cpu-64gib-2gpu"]}}
    given = {**(POOLED if pool else {}), "job": {**JOB, **size}} | ({"pool": pool} if pool else {})
    job, key = elastic_job(**given), "spec.pool" if pool == "gpu" else "spec.job.resources"

    words = f"{key}: 8cpu-64gib-2gpu has GPUs, .* set SCAVENGER_UNPROVEN=gpu-vms for the operator"
    with pytest.raises(ValueError, match=words):
        leader_of(job, Installation(SETTINGS, pools=pools))
    agreed = Installation(SETTINGS, pools=pools, unproven="gpu-vms")
    if pool == "any":
        with pytest.raises(ValueError, match=r"spec\.job\.resources: .* has 2 GPUs, and a slot of pool any"):
            leader_of(job, agreed)
        return
    [container] = leader_of(job, agreed)["spec"]["containers"]
    assert {"name": "SCAVENGER_UNPROVEN", "value": "gpu-vms"} in container["env"]


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (
            PoolSettings(infra="gcp/us-central1", vm="n1-standard-8", max=2),
            "pool.gpu.infra: ElasticJobs have pods",
        ),
        (PoolSettings(), "pool.gpu: one of slots and nodes must be given"),
        (PoolSettings(nodes={}, vm="huge"), "'huge' is no size of a pod"),
    ],
)
def test_pools_that_no_elastic_job_could_be_in_are_refused(pool: PoolSettings, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Installation(SETTINGS, pools={"gpu": pool})


def test_nodes_are_for_elastic_jobs_and_need_a_size() -> None:
    with pytest.raises(ConfigurationError, match=r"pool\.gpu\.nodes is for ElasticJobs"):
        pools_of({"gpu": PoolSettings(nodes={}, vm="4cpu-16gib")}, 2, lambda *_: 0.0)
    with pytest.raises(JobFileError, match=r"pool\.gpu\.vm must be given with nodes"):
        parse_settings('[pool.gpu]\nnodes = {a = "b"}\n', path="config.toml")


def test_a_leaders_pod_is_of_its_elastic_job_and_ends_with_it() -> None:
    first, again = (leader_of(elastic_job(), INSTALLATION) for _ in range(2))
    (owner,) = first["metadata"]["ownerReferences"]

    assert first == again
    assert first["metadata"]["name"] == "scavenger-u-1"
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("ElasticJob", "u-1", True)
