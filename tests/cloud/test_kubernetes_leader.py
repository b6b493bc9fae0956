"""The pod of a leader, as a value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scavenger.cloud.kubernetes.leader import LEADER_FOLDER, LeaderPod, Mounted, leader_pod
from scavenger.cloud.kubernetes.pods import PodSettings

NAMES = st.from_regex(r"[a-z]([a-z0-9]{0,20})", fullmatch=True)
KINDS = st.sampled_from(["secret", "config map", "claim"])


@given(st.lists(st.tuples(NAMES, KINDS), unique_by=lambda one: one[0]), st.booleans())
def test_everything_mounted_is_a_volume_is_read_only_and_only_its_folder_can_be_written(
    wanted: list[tuple[str, str]], claimed: bool
) -> None:
    mounted = tuple(Mounted(f"/run/{name}", kind, name) for name, kind in wanted)  # type: ignore[arg-type]
    leader = LeaderPod("leader", ("run",), mounted=mounted, claim="mine" if claimed else "")

    spec = leader_pod(leader, PodSettings(image="image"))["spec"]
    (container,) = spec["containers"]
    volumes = {one["name"]: one for one in spec["volumes"]}
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}

    assert len(volumes) == len(spec["volumes"]) == len(mounts)
    assert {one["name"] for one in mounts.values()} == set(volumes)
    assert [path for path, one in mounts.items() if not one.get("readOnly")] == [LEADER_FOLDER]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    kept = volumes[mounts[LEADER_FOLDER]["name"]]
    assert ("persistentVolumeClaim" in kept) == claimed == ("emptyDir" not in kept)


def test_workers_reach_a_leader_at_its_pods_address_unless_another_is_given() -> None:
    def address(**variables: str) -> list[dict[str, object]]:
        leader = LeaderPod("leader", ("run",), variables=variables)
        (container,) = leader_pod(leader, PodSettings(image="image"))["spec"]["containers"]
        return [one for one in container["env"] if one["name"] == "SCAVENGER_ADDRESS"]

    (of_the_pod,) = address()
    assert of_the_pod["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert address(SCAVENGER_ADDRESS="10.0.0.1:4000") == [
        {"name": "SCAVENGER_ADDRESS", "value": "10.0.0.1:4000"}
    ]
