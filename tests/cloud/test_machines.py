"""The net on which the tests' VMs are: what happens to one VM is nothing to the others."""

from __future__ import annotations

import json
import subprocess
from functools import partial

import pytest
from machines import Machine, Machines, needs_machines
from waiting import wait_for

ARCHIVE = """\
Content-Type: multipart/mixed; boundary="x"
MIME-Version: 1.0

--x
Content-Type: text/x-shellscript

#!/bin/sh
true
--x--
"""
ASK = """\
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("{address}", 9))
"""


def hardware_address_known_to(vm: Machine, address: str) -> str:
    """By which the VM reaches an address of its net; empty while it does not know one."""
    words = vm.run("ip", "neigh", "show", address).stdout.split()
    return words[words.index("lladdr") + 1] if "lladdr" in words else ""


def of_interface(address: str) -> str:
    """Hardware address of the interface of this machine that has the address."""
    told = subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, check=True).stdout
    return str(
        next(
            link["address"]
            for link in json.loads(told)
            for one in link["addr_info"]
            if one["local"] == address
        )
    )


@pytest.mark.slow
@needs_machines
def test_a_vm_knows_this_machine_by_an_address_that_no_vm_takes_with_it() -> None:
    """A bridge has the lowest hardware address of its ports: who went by it was cut off as another VM ended."""
    with Machines("") as machines:
        vms = [machines.boot(name, ARCHIVE) for name in ("one", "two")]
        for vm in vms:
            assert vm.up.wait(60.0)
        for vm in vms:
            asked = vm.run(
                "sh", "-c", f"ip neigh flush all; python3 -c '{ASK.format(address=machines.address)}'"
            )
            assert asked.returncode == 0, asked.stderr
            known = wait_for(partial(hardware_address_known_to, vm, machines.address), within_s=10.0)

            assert known == of_interface(machines.address)
