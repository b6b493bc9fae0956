"""File systems at URLs, as `gs://bucket/folder`, for checkpoints and data."""

from __future__ import annotations

import logging
from typing import Any


def filesystem_at(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path within it.

    Of Google Cloud Storage it is the one that asks nothing but the bucket's objects: what gcsfs registers also asks the
    Storage Control API for the kind of the bucket before each call, which needs a permission of its own, and warns on
    every call where it is refused.

    Raises:
        ImportError: If a package must be installed for the protocol.
        ValueError: If the protocol is unknown.
    """
    if url.partition("://")[0].lower() in ("gs", "gcs"):
        from gcsfs.core import GCSFileSystem

        if not (log := logging.getLogger("gcsfs")).level:
            log.setLevel(logging.CRITICAL)  # it writes the traceback of each error that it also raises
        return GCSFileSystem(), GCSFileSystem._strip_protocol(url)
    import fsspec  # imported late: local paths do not need it, and the import takes as long as NumPy's

    filesystem, path = fsspec.core.url_to_fs(url)
    return filesystem, path
