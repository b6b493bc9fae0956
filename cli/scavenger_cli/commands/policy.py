"""`policy`: what an installation must be allowed to do at a cloud."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scavenger.cloud.policies import FILES, policy_of
from scavenger.errors import ConfigurationError
from scavenger.store import Store
from scavenger_cli.options import StoreOption
from scavenger_cli.ui import console


def policy(
    cloud: Annotated[str, typer.Argument(metavar="CLOUD", help="aws or gcp.")],
    store_url: StoreOption = None,
) -> int:
    """Print the permissions that this installation needs at a cloud, as a file to apply there."""
    if cloud not in FILES:
        raise ConfigurationError(f"there is no policy of {cloud}: name {' or '.join(FILES)}")
    with Store.open(store_url) as store:
        console.write(sys.stdout, policy_of(cloud, store.installation()))
    return 0
