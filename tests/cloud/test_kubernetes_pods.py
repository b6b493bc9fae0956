"""Pods as VM types and as the scripts that they run: what needs no cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.cloud.boot.boot import Join
from scavenger.cloud.boot.pod import pod_script
from scavenger.cloud.catalog.types import Wanted
from scavenger.cloud.kubernetes.prices import PodCatalog
from scavenger.cloud.kubernetes.shapes import PodShape, cpus_of, gib_of
from scavenger.cloud.quotas import vms_left
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
    (offer,) = found.offers("kubernetes", "tests", Wanted(cpus=Amount(cpus), memory=Amount(memory)))
    (spot,) = found.offers("kubernetes", "tests", Wanted((offer.vm,)), spot=True)

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
    _until(lambda: (tmp_path / "seen").exists())
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


def _until(what: object) -> None:
    deadline = time.monotonic() + 20
    assert callable(what)
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_script_is_the_same_for_equal_values_and_installs_the_leaders_wheel() -> None:
    package = VmPackage(wheel="x.whl", sha256="ab" * 32, tools=("msgspec==1", "pyzmq==2"))
    script = pod_script(JOIN, package, life_s=900.2)
    assert script == pod_script(JOIN, package, life_s=900.2)
    assert f"--has {'ab' * 32}" in script
    assert ":-901}" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=True, stderr=sys.stderr)
