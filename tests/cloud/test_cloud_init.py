"""What the real cloud-init makes of our user data, on a VM whose disk is its own."""

from __future__ import annotations

import subprocess
from email.mime.text import MIMEText
from pathlib import Path

import pytest
from machines import Machines, needs_machines
from test_boot import PACKAGE, archive, join_of
from waiting import eventually

from scavenger.cloud.boot.boot import boot_script
from scavenger.cloud.boot.user_data import RENEW_COMMAND

# The distribution's own configuration would also see to disks, of which the VM sees this machine's.
CONFIGURATION = """
datasource_list: [NoCloud]
network: {config: disabled}
disable_root: true
cloud_init_modules: []
cloud_config_modules: []
cloud_final_modules: [scripts-per-once, scripts-per-boot, scripts-per-instance, scripts-user]
output: {all: '| tee -a /var/log/cloud-init-output.log'}
"""
BOOT = """#!/bin/sh
set -e
for package in {folder}/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C /
done
rm -rf /etc/cloud/cloud.cfg.d /var/lib/cloud
mkdir -p /var/lib/cloud/seed/nocloud /etc/cloud
cp {folder}/cloud.cfg /etc/cloud/cloud.cfg
cp {folder}/user-data {folder}/meta-data /var/lib/cloud/seed/nocloud/
cloud-init init --local
cloud-init init
echo; echo "limits: $(systemctl is-active scavenger-limit.timer scavenger-end.timer; echo $?)"
cloud-init modules --mode=config
cloud-init modules --mode=final
cat /var/log/cloud-init-output.log
echo "status: $(cloud-init status --format=json | tr -d '\\n')"
"""
AGENT = '#!/bin/sh\necho agent of $(sed \'s/.*intent": "//; s/".*//\' $1)\nexec sleep 600\n'


def fetch(folder: Path) -> None:
    """Debian's cloud-init and what of its needs is not installed, as files; skips where they cannot be had."""
    try:
        planned = subprocess.run(
            ["apt-get", "install", "--simulate", "--no-install-recommends", "cloud-init"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        names = [
            line.split()[1]
            for line in planned.stdout.splitlines()
            if line.startswith(("Inst cloud-init ", "Inst python3-"))
        ]
        fetched = subprocess.run(
            ["apt-get", "download", *names], cwd=folder, capture_output=True, text=True, timeout=120
        )
    except OSError as error:
        pytest.skip(f"cloud-init cannot be had: {error}")
    if "cloud-init" not in names or fetched.returncode != 0:
        pytest.skip(f"cloud-init cannot be had: {planned.stderr}{fetched.stderr}"[:300])


@pytest.mark.long
@needs_machines
def test_cloud_init_sets_the_limits_first_and_then_starts_the_agent(tmp_path: Path) -> None:
    fetch(tmp_path)
    (tmp_path / "cloud.cfg").write_text(CONFIGURATION)
    (tmp_path / "meta-data").write_text("instance-id: i-1\nlocal-hostname: a-vm\n")
    script = boot_script(join_of(intent="an-intent"), PACKAGE)
    (tmp_path / "user-data").write_text(archive(script, life_s=6.0))
    first = MIMEText(BOOT.format(folder=tmp_path), "x-shellscript").as_string()

    with Machines(AGENT, stop_s=0.5) as machines:
        machine = machines.boot("a-vm", first)
        assert eventually(
            lambda: "status: " in machine.console() or "ended with" in machine.console(), within_s=60.0
        ), machine.console()
        renewed = machine.run(*RENEW_COMMAND.split())
        said = machine.console()

        assert "limits: 0\n" in said, said
        assert "scavenger: the agent was started" in said
        assert "agent of an-intent" in said
        assert '"status": "done"' in said
        assert '"errors": []' in said
        assert renewed.returncode == 0
        assert machine.over.wait(60)
        assert machine.how == "poweroff"
