"""A cloud on this machine to try commands on: `python -m tests.cloud.live aws|gcp`, as root.

Prints the environment to export, and then reads commands: `vms`, `interrupt ID [SECONDS]`, `console ID`, `end`. Its VMs
are processes of this machine (`machines.py`); when it ends, they do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from machines import Machine, Machines, unavailable


def main(arguments: list[str]) -> int:
    """See the module."""
    if arguments not in (["aws"], ["gcp"]):
        print("say aws or gcp", file=sys.stderr)
        return 2
    if reason := unavailable():
        print(reason, file=sys.stderr)
        return 1
    with Machines() as machines:
        return (_aws if arguments == ["aws"] else _gcp)(machines)


def _aws(machines: Machines) -> int:
    from aws_live import LiveAws
    from aws_server import REGION

    with closing(LiveAws(machines)) as server:
        _export(
            AWS_ENDPOINT_URL=server.url,
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="test",
            AWS_EC2_METADATA_DISABLED="true",
            AWS_DEFAULT_REGION=REGION,
            SCAVENGER_ADDRESS=machines.address,
        )
        return _serve(
            lambda: [(each.id, each.state, server.vm(each.id)) for each in server.instances().values()],
            lambda name, in_s: server.interrupt(name, in_s=in_s),
        )


def _gcp(machines: Machines) -> int:
    from gcp_live import LiveGcp
    from gcp_state import PROJECT

    with LiveGcp(machines) as server:
        _export(
            SCAVENGER_GCP_ENDPOINT=server.endpoint,
            GOOGLE_CLOUD_PROJECT=PROJECT,
            SCAVENGER_ADDRESS=machines.address,
        )

        def vms() -> list[tuple[str, str, Machine]]:
            with server.live.lock:
                return [
                    (str(each.id), server.live.show_machine(each)["status"], server.vm(str(each.id)))
                    for each in server.live.alive()
                ]

        return _serve(vms, lambda name, in_s: server.interrupt(name, in_s=in_s))


def _export(**environment: str) -> None:
    for name, value in environment.items():
        print(f"export {name}={value}")
    sys.stdout.flush()


def _serve(
    vms: Callable[[], list[tuple[str, str, Machine]]], interrupt: Callable[[str, float | None], None]
) -> int:
    try:
        for line in sys.stdin:
            words = line.split()
            known = {name: vm for name, _, vm in vms()}
            match words:
                case ["end"]:
                    return 0
                case ["vms"]:
                    for name, state, vm in vms():
                        print(name, state, vm.address, vm.how or "runs", flush=True)
                case ["interrupt", name, *seconds] if name in known and len(seconds) <= 1:
                    interrupt(name, float(seconds[0]) if seconds else None)
                case ["console", name] if name in known:
                    print(known[name].console(), flush=True)
                case _:
                    print("vms, interrupt ID [SECONDS], console ID, or end", file=sys.stderr)
        threading.Event().wait()  # nobody types: until a signal
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
