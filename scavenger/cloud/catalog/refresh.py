"""Refreshes the prices of a cloud's regions from its own sources."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from scavenger.cloud.catalog.cache import read_cache, write_cache
from scavenger.cloud.catalog.snapshot import read_snapshot
from scavenger.cloud.stock import Fetched


def refresh_catalog(
    provider: str, regions: Iterable[str], *, project: str = "", cache: Path, now: datetime
) -> Fetched:
    """Fetch the machine types of some regions with their current prices, and save them.

    Args:
        provider: `gcp` or `aws`.
        project: Of `gcp`, whose machine types are asked for.
        cache: The file with the refreshed prices.

    Returns:
        The fetched prices, and the errors of sources that gave nothing; what these gave earlier is kept.

    Raises:
        CloudError, ConfigurationError: See `fetch_aws` and `fetch_gcp`; earlier prices are kept.
    """
    cached = read_cache(cache)
    if provider == "aws":
        from scavenger.cloud.catalog.refresh_aws import fetch_aws

        fetched = fetch_aws(regions, now=now, known=cached.over(read_snapshot()))
    else:
        from scavenger.cloud.catalog.refresh_gcp import fetch_gcp

        fetched = fetch_gcp(regions, project=project, now=now)
    write_cache(cache, fetched.stock.over(cached))
    return fetched
