"""The permissions that Scavenger needs at each cloud, as files to apply there; see docs/clouds.md.

`aws.json` is an IAM policy for who runs `scavenger`, in which `INSTALLATION` stands for the tag of the installation;
`scavenger policy` fills it in. `aws-vms.json` is one for the role of an instance profile, and `gcp.yaml` a custom role
for who runs `scavenger`.
"""

from __future__ import annotations

from importlib import resources

FILES = {"aws": "aws.json", "gcp": "gcp.yaml"}
"""By cloud: what who runs `scavenger` may do."""


def policy_of(cloud: str, owner: str) -> str:
    """What an installation needs at a cloud, as a file to apply there.

    Args:
        cloud: One of `FILES`.
        owner: Tag of the installation. Leaders' VMs, and what they rent, have it with `-` and some letters after it.
    """
    text = resources.files(__package__).joinpath(FILES[cloud]).read_text()
    return text.replace("INSTALLATION", owner)
