"""Prices that need no account: the public table that the project of apache-libcloud renews."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import requests

from scavenger.cloud.catalog.cache import write_cache
from scavenger.cloud.catalog.snapshot import stock_of
from scavenger.cloud.catalog.types import Stock
from scavenger.errors import CloudUnavailableError

PUBLIC_URL = "https://libcloud-pricing-data.s3.amazonaws.com/pricing.json"
PUBLIC_VARIABLE = "SCAVENGER_PUBLIC_PRICES"
"""Where to read the table instead: a mirror of one's own."""
_MAX_BYTES = 64 * 2**20
_TIMEOUT_S = 30


def fetch_public(environment: Mapping[str, str] = os.environ) -> Stock:
    """List prices of EC2 and rates of Compute Engine, each with the table's date; it has no spot prices of EC2.

    Args:
        environment: Where `SCAVENGER_PUBLIC_PRICES` is looked up.

    Raises:
        CloudUnavailableError: If the table cannot be had, or is none.
        ConfigurationError: If apache-libcloud is not there.
    """
    url = environment.get(PUBLIC_VARIABLE) or PUBLIC_URL
    try:
        with requests.get(url, timeout=_TIMEOUT_S, stream=True) as answer:
            answer.raise_for_status()
            body = answer.raw.read(_MAX_BYTES + 1, decode_content=True)
        if len(body) > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES >> 20} MiB")
        return stock_of(msgspec.json.decode(body), "libcloud's public table")
    except (requests.ConnectionError, requests.Timeout) as error:
        raise CloudUnavailableError(f"the public price table cannot be reached: {url}") from error
    except (OSError, ValueError) as error:  # those of requests and msgspec are such
        raise CloudUnavailableError(f"the public price table cannot be read: {url}: {error}") from error


if __name__ == "__main__":
    write_cache(Path(sys.argv[1]), fetch_public())
