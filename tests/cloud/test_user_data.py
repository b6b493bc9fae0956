"""The archive that every VM boots with."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from email import message_from_string
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_intents import made_request
from nested import changed

from scavenger.cloud.boot.boot import Join, boot_script
from scavenger.cloud.boot.package import own_package
from scavenger.cloud.boot.user_data import LIMIT_TIMER, RENEW_COMMAND, user_data
from scavenger.domain.vm import VmPackage, VmRequest
from scavenger.errors import ConfigurationError
from scavenger.testing.provider_conformance import token_of

REQUEST = made_request(token=token_of(0), owner="o", vm="c5.large", zone="us-east-1a")


def parts(request: VmRequest) -> list[tuple[str, str]]:
    return [
        (part.get_content_type(), str(cast("bytes", part.get_payload(decode=True)), "utf-8"))
        for part in message_from_string(user_data(request)).walk()
        if not part.is_multipart()
    ]


def test_the_limits_are_set_before_anything_of_the_users() -> None:
    request = changed(REQUEST, life_s=899.2, run_max_s=5_400.2, user_data="#!/bin/sh\necho grüße\n")

    limits, script = parts(request)

    assert limits[0] == "text/cloud-boothook"
    assert f"timer {LIMIT_TIMER} 'Lease of this VM' 900\n" in limits[1]
    assert "timer scavenger-end.timer 'Last moment of this VM' 5401\n" in limits[1]
    assert f"systemctl start --no-block {LIMIT_TIMER} scavenger-end.timer" in limits[1]
    subprocess.run(["sh", "-n"], input=limits[1], text=True, check=True, timeout=10)
    assert script == ("text/x-shellscript", request.template.user_data)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own check of units")
def test_systemd_finds_no_fault_with_what_a_vm_is_given(tmp_path: Path) -> None:
    join = Join("tcp://10.0.0.1:5", "k" * 40, token_of(0), "s" * 40, "gcp")
    folder = tmp_path / "run/systemd/system"
    folder.mkdir(parents=True)
    for name, text in (
        ("scavenger-vm", ""),
        ("systemctl", '[ "$1 $3" != "is-active scavenger-vm.service" ]'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for script in (parts(REQUEST)[0][1], boot_script(join, own_package())):
        subprocess.run(
            ["sh"],
            input=script.replace("/run/", f"{tmp_path}/run/"),
            text=True,
            check=True,
            timeout=10,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )
    units = sorted(folder.iterdir())

    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert [unit.name for unit in units] == [
        "scavenger-end.timer",
        "scavenger-limit.service",
        "scavenger-limit.timer",
        "scavenger-vm.service",
    ]
    assert [line for line in found.stderr.splitlines() if "scavenger" in line] == []


def test_renewing_starts_the_lease_anew_and_not_the_last_moment() -> None:
    assert f"systemctl restart {LIMIT_TIMER}" == RENEW_COMMAND
    assert "scavenger-end" not in RENEW_COMMAND


def test_a_vm_without_user_data_has_its_limits_all_the_same() -> None:
    ((kind, _),) = parts(REQUEST)

    assert kind == "text/cloud-boothook"


@given(life_s=st.floats(1e-3, 1e9), run_max_s=st.floats(1e-3, 1e9))
def test_the_same_request_has_the_same_user_data_and_whole_seconds(life_s: float, run_max_s: float) -> None:
    request = changed(REQUEST, life_s=life_s, run_max_s=run_max_s)

    assert user_data(request) == user_data(replace(request))
    for _, text in parts(request):
        seconds = [int(line.split()[-1]) for line in text.splitlines() if line.startswith("timer scavenger")]
        assert [life_s <= seconds[0] < life_s + 1, run_max_s <= seconds[1] < run_max_s + 1] == [True, True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user_data": "echo no first line"}, "#!"),
        ({"user_data": "#!/bin/sh\n" + "x" * 20_000}, "16384"),
        *(
            ({limit: value}, "time limit")
            for limit in ("run_max_s", "life_s")
            for value in (0.0, -1.0, float("inf"), float("nan"))
        ),
    ],
)
def test_user_data_that_would_not_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        user_data(changed(REQUEST, **changes))


def test_a_boot_script_leaves_half_of_the_room() -> None:
    join = Join("tcp://a-leader.example.com:65535", "k" * 40, token_of(0), "s" * 40, "gcp")
    named = VmPackage(requirement="scavenger-ml @ https://example.com/" + "x" * 500)

    for package in (named, own_package(["parquet", "aws"])):
        script = boot_script(join, package)

        assert len(user_data(changed(REQUEST, user_data=script)).encode()) < 8_192
