"""Pods as processes of this machine: each in namespaces of its own, as VMs of the tests are (`machines.py`)."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Callable
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any

from machines import Machine, Machines

_EXIT = re.compile(r"^pod of the tests: exit (\d+)$", re.MULTILINE)
_SCRIPT = """\
#!/bin/sh
mkdir -p /work @MOUNT@
cat > @MOUNT@/boot.sh <<'END OF THE BOOT SCRIPT'
@BOOT@
END OF THE BOOT SCRIPT
@VARIABLES@
cd /work
@COMMAND@ &
echo $! > /run/pod
wait $!
echo "pod of the tests: exit $?" >&2
systemctl poweroff
"""


class MachineRunner:
    """Starts each pod as a machine; see `kubelet.Runner`.

    Args:
        machines: Where they run.
        cores_per_cpu: Processors' time for each CPU that a pod asks for.
    """

    def __init__(self, machines: Machines, *, cores_per_cpu: float = 0.5) -> None:
        self._machines, self._cores_per_cpu = machines, cores_per_cpu
        self.started: dict[str, _PodMachine] = {}

    def start(self, pod: Any, read: Callable[[str], dict[str, str]]) -> _PodMachine:
        (container,) = pod.spec.containers
        (secret,) = (one.secret.secret_name for one in pod.spec.volumes if one.secret is not None)
        mount = next(one.mount_path for one in container.volume_mounts if one.name == "boot")
        values = {
            "@MOUNT@": mount,
            "@BOOT@": read(secret)["boot.sh"],
            "@COMMAND@": " ".join(container.command),
            "@VARIABLES@": "\n".join(
                f"export {one.name}={shlex.quote(one.value or _field(pod, one.value_from))}"
                for one in container.env
            ),
        }
        script = re.sub("@(?:MOUNT|BOOT|COMMAND|VARIABLES)@", lambda found: values[found[0]], _SCRIPT)
        archive = MIMEMultipart()
        archive.attach(MIMEText(script, "x-shellscript", "utf-8"))
        cpus = float(container.resources.requests["cpu"])
        name = pod.metadata.name.replace("scavenger-", "p")[:20]
        machine = self._machines.boot(name, archive.as_string(), cores=cpus * self._cores_per_cpu)
        self.started[pod.metadata.name] = found = _PodMachine(machine)
        return found


def _field(pod: Any, source: Any) -> str:
    """What the downward API gives."""
    return {"spec.nodeName": str(pod.spec.node_name)}[source.field_ref.field_path]


class _PodMachine:
    """See `kubelet.Running`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._killed = False

    @property
    def address(self) -> str:
        return self.machine.address

    def ended(self) -> int | None:
        if not self.machine.over.is_set():
            return None
        found = _EXIT.search(self.machine.console())
        return int(found[1]) if found else 137

    def stop(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.machine.run("sh", "-c", "kill -TERM $(cat /run/pod)", timeout_s=10.0)

    def cut(self) -> None:
        self.machine.cut()

    def kill(self) -> None:
        if not self._killed:
            self._killed = True
            self.machine.kill()

    def log(self) -> str:
        return self.machine.console()
