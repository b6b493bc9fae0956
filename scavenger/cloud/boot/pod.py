"""The script that makes a pod or a host join its coordinator: a user without rights runs it.

It does what `boot_script` does on a VM, with what a container has: a folder of its own instead of a root file system,
and no service manager. So it is the parent of the agent. It ends with it, passes the signal on by which a pod is asked
to end, and kills it if nobody has renewed its life in time. Its output is the pod's log, in the words of
`scavenger.domain.boot`.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict

from scavenger.cloud.boot.boot import (
    FETCH_PROGRAM,
    Join,
    check_requirement,
    filled,
    gpu_requirement,
    install_command,
    proxy_variables,
    what_of,
)
from scavenger.cloud.boot.package import CONSTRAINTS
from scavenger.domain import boot
from scavenger.domain.vm import VmPackage

_SCRIPT = """\
#!/bin/sh
# Makes this pod a worker or an aggregator of Scavenger.
set -eu
umask 077
@PROXY@
end() {
    echo "@MARK@$1; this pod ends"
    exit 1
}
echo '@MARK@@BOOTING@'
folder=$(mktemp -d)
cd "$folder"
venv=${SCAVENGER_VENV:-$folder/venv}
cat > renew.sh <<'END'
echo $(($(date +%s) + ${SCAVENGER_LIFE_S:-@LIFE@})) > until.part && mv until.part until
END
sh renew.sh
cat > join.json <<'END'
@JOIN@
END
cat > @GIVEN@ <<'END'
@CONTENT@
END
: > gpus.txt
if [ -n '@GPUS@' ] && command -v nvidia-smi > /dev/null; then
    echo '@GPUS@' >> gpus.txt
fi
pip() {
    "$venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check --no-cache-dir
}
installed() {
    { [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"; } && @INSTALL@ && @CHECK@
}
agent=$(command -v scavenger-vm) || agent=
if [ -z "$agent" ]@UNLESS@; then
    agent=$venv/bin/scavenger-vm
    echo "@MARK@@INSTALLING@ "@NAME@
    pause_s=5
    until installed; do
        [ "$pause_s" -le 80 ] || end '@UNINSTALLED@'
        echo "@MARK@@RETRYING@ $pause_s s"
        sleep "$pause_s"
        pause_s=$((pause_s * 2))
    done
fi
"$agent" join.json &
running=$!
trap 'kill -TERM "$running" 2> /dev/null || :' TERM INT
echo '@MARK@@STARTED@'
while kill -0 "$running" 2> /dev/null; do
    if [ "$(date +%s)" -ge "$(cat until)" ]; then
        kill -KILL "$running" 2> /dev/null || :
        end 'nobody has renewed its life'
    fi
    sleep 1 &
    wait "$!" || :
done
status=0
wait "$running" || status=$?
exit "$status"
"""
# SCAVENGER_VENV: a host keeps what was installed for the next one.
# sleep: in the background, since a shell looks at its traps only between two commands.


def pod_script(join: Join, package: VmPackage, *, life_s: float, proxy: str = "") -> str:
    """Create the POSIX shell script of a pod's container; equal values give the identical text.

    Args:
        join: As for `boot_script`.
        package: Installed into the pod's own folder, if its image has no agent, or that of another package.
        life_s: The agent is killed so long after its start, or after its life was last renewed.
        proxy: As for `boot_script`.

    Raises:
        ConfigurationError: As for `boot_script`.
    """
    if package.requirement or not package.wheel:
        check_requirement(package.requirement)
        values = {
            "@GIVEN@": "requirements.txt",
            "@CONTENT@": package.requirement,
            "@UNLESS@": "",
            "@INSTALL@": "pip install -r requirements.txt -r gpus.txt",
            "@CHECK@": '[ -x "$venv/bin/scavenger-vm" ]',
        }
    else:
        fetch = shlex.join(["fetch.py", package.wheel, package.sha256, CONSTRAINTS])
        has = f'"$venv/bin/scavenger-vm" --has {what_of(package)}'
        values = {
            "@GIVEN@": "fetch.py",
            "@CONTENT@": FETCH_PROGRAM.rstrip("\n"),
            "@UNLESS@": f' || ! "$agent" --has {what_of(package)}',
            "@CHECK@": has,
            "@INSTALL@": f"pip install {shlex.join(package.tools)} &&\n"
            f'        "$venv/bin/python" {fetch} &&\n        {install_command(package)} -r gpus.txt',
        }
    variables = proxy_variables(proxy)
    # the agent runs in the script's folder; when it has ended, so does the pod
    document = json.dumps({**asdict(join), "renew": "sh renew.sh", "poweroff": "true"})
    values |= {
        "@MARK@": boot.MARK,
        "@BOOTING@": boot.BOOTING,
        "@INSTALLING@": boot.INSTALLING,
        "@RETRYING@": boot.RETRYING,
        "@UNINSTALLED@": boot.NOT_INSTALLED,
        "@STARTED@": boot.STARTED,
        "@NAME@": shlex.quote(package.name),
        "@PROXY@": f"export {' '.join(map(shlex.quote, variables))}" if proxy else "# no proxy",
        "@LIFE@": str(math.ceil(life_s)),
        "@JOIN@": document,
        "@GPUS@": gpu_requirement(package),
    }
    return filled(_SCRIPT, values)
