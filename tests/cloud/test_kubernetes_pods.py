"""Pods as VM types and as the scripts that they run: what needs no cluster."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_for

from scavenger.cloud.boot.boot import Join
from scavenger.cloud.boot.pod import pod_script
from scavenger.cloud.kubernetes.nodes import KubernetesNode, node_from, nodes_open, slots_of
from scavenger.cloud.kubernetes.pods import PodSettings
from scavenger.cloud.kubernetes.prices import PodCatalog
from scavenger.cloud.kubernetes.shapes import PodShape, cpus_of, gib_of
from scavenger.cloud.quotas import vms_left
from scavenger.cloud.stock import VmRequirements
from scavenger.control.places.room import admitted
from scavenger.domain.configuration import Offer
from scavenger.domain.ranges import Amount
from scavenger.domain.vm import Quota, VmPackage
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError
from scavenger.train.engines.vm.agent import Ticket

JOIN = Join("tcp://127.0.0.1:9", "s" * 40, "intent-1", "k$`\"'\\!" + "k" * 33, "kubernetes")
"""With all that a shell would read."""


def catalog(**prices: float) -> PodCatalog:
    return PodCatalog(KubernetesSettings.model_validate(prices), "tests", today=date(2026, 11, 23))


@given(st.integers(1, 512), st.integers(1, 4096), st.integers(0, 16))
def test_a_size_is_read_back_from_its_name(cpus: int, memory_gib: int, gpus: int) -> None:
    shape = PodShape(cpus, memory_gib, gpus)
    assert PodShape.parse(str(shape)) == shape


@pytest.mark.parametrize("name", ["c5.large", "0cpu-4gib", "4cpu", "4cpu-0gib", "4cpu-4gib-", ""])
def test_another_name_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ConfigurationError, match="4cpu-16gib"):
        PodShape.parse(name)


def test_quantities_of_the_api_are_read_in_all_their_units() -> None:
    assert [cpus_of(one) for one in ("4", "3920m", "0.5", "1k", "2e3")] == [4.0, 3.92, 0.5, 1000.0, 2000.0]
    assert gib_of("16Gi") == gib_of(str(16 * 2**30)) == gib_of("16384Mi") == 16.0
    assert cpus_of("many") == 0.0


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.integers(1, 64), st.integers(1, 256))
def test_a_pod_costs_its_cpus_and_its_memory_and_on_spot_nodes_a_part_of_it(
    cpu: float, gib: float, cpus: int, memory: int
) -> None:
    found = catalog(usd_per_cpu_hour=cpu, usd_per_gib_hour=gib, spot_percent=30)
    (offer,) = found.offers("kubernetes", "tests", VmRequirements(cpus=Amount(cpus), memory=Amount(memory)))
    (spot,) = found.offers("kubernetes", "tests", VmRequirements((offer.vm,)), spot=True)

    assert offer.price_usd_per_hour == pytest.approx(cpus * cpu + memory * gib)
    assert spot.price_usd_per_hour == pytest.approx(0.3 * offer.price_usd_per_hour)
    assert (offer.cpus, offer.memory_bytes) == (cpus, memory * 2**30)


def test_a_price_that_nobody_has_written_is_asked_for_and_never_zero() -> None:
    for prices in ({}, {"usd_per_cpu_hour": 0.03}):
        with pytest.raises(ConfigurationError, match="usd_per_cpu_hour and usd_per_gib_hour under"):
            catalog(**prices).offers("kubernetes", "tests")
    with pytest.raises(ConfigurationError, match="spot_percent"):
        catalog(usd_per_cpu_hour=0.03, usd_per_gib_hour=0.004).price(
            "kubernetes", "tests", "2cpu-4gib", spot=True
        )
    with pytest.raises(ValueError, match="above 0"):
        catalog(usd_per_cpu_hour=0.0)


def test_a_namespaces_quotas_limit_the_pods() -> None:
    quotas = [
        Quota("all/pods", "tests", 10, 3),
        Quota("all/requests.cpu", "tests", 20, 8),
        Quota("all/requests.memory", "tests", 64 * 2**30, 16 * 2**30),
    ]
    found = vms_left("kubernetes", quotas, "2cpu-16gib", 2, spot=False)
    assert found is not None
    assert (found[0], found[1].name) == (3, "all/requests.memory")


POOLS = {
    "plain": {"labels": {"pool": "plain"}, "usd_per_hour": 0.4},
    "spot": {"labels": {"pool": "spot"}, "usd_per_hour": 0.1, "cpus": 8, "memory": 32},
}


def node(name: str, cpus: int, gib: int, *, price: str = "", **labels: str) -> KubernetesNode:
    priced = {"scavenger/usd-per-hour": price} if price else {}
    return KubernetesNode(name, {**labels, **priced}, allocatable={"cpu": str(cpus), "memory": f"{gib}Gi"})


def of_nodes(*nodes: KubernetesNode, **settings: Any) -> PodCatalog:
    found = KubernetesSettings.model_validate(settings)
    pods = PodSettings(spot_labels=tuple(found.spot_labels.items()))
    read = functools.partial(nodes_open, nodes, pods)
    return PodCatalog(found, "tests", today=date(2026, 11, 23), nodes=lambda spot: read(spot=spot))


@given(st.integers(1, 16), st.integers(1, 64), st.floats(0.01, 100.0))
def test_pods_that_fill_a_node_cost_at_least_what_it_costs_and_one_never_more(
    cpus: int, gib: int, usd: float
) -> None:
    shape, priced = PodShape(cpus, gib), node("a", 16, 64, price=repr(usd))
    each = of_nodes(priced).price("", "", str(shape)).usd_per_hour
    fit = min(16 // cpus, 64 // gib)

    assert each <= usd * (1 + 1e-9)
    assert (fit + 1) * each > usd  # so many have no room, and would have paid for more than the node
    assert each >= usd * max(cpus / 16, gib / 64) * (1 - 1e-9)


def test_a_pod_costs_what_it_does_on_the_dearest_node_that_it_may_be_on() -> None:
    nodes = (
        node("small", 2, 4, price="9"),
        node("cheap", 8, 32, price="0.2"),
        node("dear", 8, 32, price="0.8"),
    )
    found = of_nodes(*nodes).price("", "", "4cpu-8gib")
    assert (found.usd_per_hour, "nodes such as dear" in str(found)) == (pytest.approx(0.4), True)


def test_a_price_of_a_pool_comes_before_prices_of_amounts_and_they_before_those_of_nodes() -> None:
    nodes = (node("a", 8, 32, price="5", pool="plain"), node("b", 8, 32, price="5"))
    by_amount = {"usd_per_cpu_hour": 0.001, "usd_per_gib_hour": 0.001}

    assert of_nodes(nodes[0], pools=POOLS).price("", "", "4cpu-8gib").usd_per_hour == pytest.approx(0.2)
    assert of_nodes(nodes[1], **by_amount).price("", "", "4cpu-8gib").usd_per_hour == pytest.approx(0.012)
    both = of_nodes(*nodes, pools=POOLS, **by_amount)
    assert both.price("", "", "4cpu-8gib").usd_per_hour == pytest.approx(0.2)
    assert "pool plain in the settings" in str(both.price("", "", "4cpu-8gib"))


def test_nodes_that_the_cloud_may_take_back_have_prices_of_their_own_also_while_there_is_none() -> None:
    found = of_nodes(node("a", 8, 32, pool="plain"), pools=POOLS, spot_labels={"pool": "spot"})
    prices = [found.price("", "", "4cpu-8gib", spot=spot).usd_per_hour for spot in (False, True)]
    assert prices == pytest.approx([0.2, 0.05])


@pytest.mark.parametrize("price", ["0", "-1", "nan", "inf", "cheap", "2000"])
def test_what_is_no_price_on_a_node_is_refused_with_the_node(price: str) -> None:
    with pytest.raises(ConfigurationError, match="of node a is no price: write US dollars above 0"):
        of_nodes(node("a", 8, 32, price=price)).price("", "", "4cpu-8gib")


def test_one_node_without_a_price_leaves_the_price_unknown() -> None:
    nodes = (node("a", 8, 32, price="0.4"), node("b", 8, 32))
    with pytest.raises(ConfigurationError, match="or label nodes with scavenger/usd-per-hour"):
        of_nodes(*nodes).price("", "", "4cpu-8gib")
    with pytest.raises(ConfigurationError, match="no node that the job's pods may be on has room"):
        of_nodes(*nodes).price("", "", "64cpu-8gib")


def test_a_pod_is_on_no_node_whose_taint_it_does_not_tolerate_or_that_may_be_taken_back() -> None:
    tainted = KubernetesNode("a", taints=(("dedicated", "team", "NoSchedule"),))
    ill = KubernetesNode("b", taints=(("node.kubernetes.io/not-ready", "", "NoExecute"),))
    spot = KubernetesNode("c", labels={"spot": "true", "more": "yes"})
    tolerant = PodSettings(tolerations=({"key": "dedicated", "operator": "Equal", "value": "team"},))
    taking = PodSettings(spot_labels=(("spot", "true"),))

    assert nodes_open([tainted, ill], PodSettings(), spot=False) == (ill,)
    assert nodes_open([tainted, ill], tolerant, spot=False) == (tainted, ill)
    assert nodes_open([ill, spot], taking, spot=False) == (ill,)
    assert nodes_open([ill, spot], taking, spot=True) == (spot,)


def offer(vm: str, *, spot: bool = False) -> Offer:
    return Offer("kubernetes", "tests", vm, 0.1, "", 2, 2**32, spot=spot)


def test_sizes_that_are_refused_are_left_out_and_spot_nodes_are_no_must_unless_they_are() -> None:
    said = {("2cpu-4gib", True): "no spot node", ("64cpu-4gib", False): "too large"}

    def refusal(vm: str, spot: bool) -> str:
        return said.get((vm, spot), "")

    small, large = offer("2cpu-4gib", spot=True), offer("64cpu-4gib")
    assert admitted((small, large), "2cpu-4gib", refusal, spot="auto") == (
        (small,),
        ("64cpu-4gib is left out: too large",),
    )
    for offers, aggregator, why in (
        ((small, large), "", "no spot node"),
        ((small,), "64cpu-4gib", "aggregators"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            admitted(offers, aggregator, refusal, spot="always")


def _run(tmp_path: Path, agent: str, *, life_s: float = 60.0) -> subprocess.Popen[str]:
    """The script, with a program in place of the image's agent."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "scavenger-vm"
    program.write_text(f"#!/bin/sh\n{agent}\n")
    program.chmod(0o755)
    script = pod_script(JOIN, VmPackage(requirement="scavenger-ml"), life_s=life_s)
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        env={
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "TMPDIR": str(tmp_path),
            "SEEN": str(tmp_path / "seen"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_script_hands_the_key_to_the_agent_and_ends_as_it_does(tmp_path: Path) -> None:
    process = _run(tmp_path, 'cp "$1" "$SEEN"; exit 7')
    said, _ = process.communicate(timeout=30)
    ticket = msgspec.json.decode((tmp_path / "seen").read_bytes())

    assert process.returncode == 7
    assert ticket["secret"] == JOIN.secret
    assert "scavenger: booting" in said
    assert JOIN.secret not in said
    assert set(ticket) == set(Ticket.__struct_fields__)


def test_the_signal_by_which_a_pod_is_asked_to_end_reaches_the_agent(tmp_path: Path) -> None:
    process = _run(tmp_path, "trap 'echo told; exit 0' TERM; touch \"$SEEN\"; while :; do sleep 0.1; done")
    wait_for(lambda: (tmp_path / "seen").exists())
    process.terminate()
    said, _ = process.communicate(timeout=30)
    assert (process.returncode, "told" in said) == (0, True)


def test_an_agent_whose_life_nobody_renews_is_killed_and_one_that_is_renewed_is_not(tmp_path: Path) -> None:
    renewing = "SCAVENGER_LIFE_S=3 sh renew.sh; sleep 1.5; SCAVENGER_LIFE_S=2 sh renew.sh; exec sleep 60"
    began = time.monotonic()
    process = _run(tmp_path, renewing, life_s=2.0)
    said, _ = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "nobody has renewed its life" in said
    assert 3.0 <= time.monotonic() - began < 20.0


def test_the_script_is_the_same_for_equal_values_and_installs_the_leaders_wheel() -> None:
    package = VmPackage(wheel="x.whl", sha256="ab" * 32, tools=("msgspec==1", "pyzmq==2"))
    script = pod_script(JOIN, package, life_s=900.2)
    assert script == pod_script(JOIN, package, life_s=900.2)
    assert f"--has {'ab' * 32}" in script
    assert ":-901}" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=True, stderr=sys.stderr)


def test_slots_are_the_pods_that_fit_beside_others_on_nodes_that_stay() -> None:
    amounts = {"allocatable": {"cpu": "7900m", "memory": "31Gi", "nvidia.com/gpu": "2"}}
    lost = {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}
    documents = [
        {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": amounts}
        for name, labels, spec in (
            ("a", {"pool": "x"}, {}),
            ("other", {}, {}),
            ("drained", {"pool": "x"}, {"unschedulable": True}),
            ("lost", {"pool": "x"}, lost),
        )
    ]
    nodes, pods = [node_from(one) for one in documents], PodSettings(node_labels=(("pool", "x"),))

    def slots(shape: str, *requests: dict[str, str]) -> int:
        return slots_of(nodes, pods, PodShape.parse(shape), {"a": requests, "other": [{"cpu": "7"}]})

    assert slots("2cpu-4gib") == 3
    assert slots("2cpu-4gib", {"cpu": "1900m"}) == 3
    assert slots("2cpu-4gib", {"cpu": "1"}, {"cpu": "1", "memory": "1Gi"}) == 2
    assert slots("1cpu-16gib") == 1
    assert slots("1cpu-1gib-1gpu") == 2
    assert slots("1cpu-1gib-1gpu", {"nvidia.com/gpu": "2"}) == 0
    assert slots("8cpu-1gib", {"cpu": "9"}) == 0
