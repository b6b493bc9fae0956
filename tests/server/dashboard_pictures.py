"""`python -m tests.server.dashboard_pictures STORE JOB FOLDER`: pictures of the dashboard, for the documentation.

STORE is the URL of a store, JOB a job in it. Needs what the tests in a browser need, see `browsing`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # as pytest has it

from browsing import browser, serving

from scavenger.store import Store

WIDTH, HEIGHT = 1280, 900


def take(opened: Any, address: str, token: str, path: str, *, theme: str, height: int, out: Path) -> None:
    """Write one picture of a page."""
    context = opened.new_context(viewport={"width": WIDTH, "height": height}, color_scheme=theme)
    page = context.new_page()
    page.goto(f"{address}/login?token={token}")
    page.goto(address + path)
    if path != "/":
        page.locator("#timeline .main-svg").first.wait_for()
        page.wait_for_timeout(500)  # the last figure is being drawn
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.png"
        page.screenshot(path=whole)
        _reduce(whole, out)
    context.close()


def _reduce(source: Path, out: Path) -> None:
    """The picture with 160 colours, a third of the bytes."""
    from PIL import Image

    with Image.open(source) as image:
        image.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(out, optimize=True)


def main(url: str, key: str, folder: Path) -> None:
    """Take both pictures."""
    with Store.open(url) as store:
        job = store.job(key)
        user = "ann"
        store.set_user(user, "admin")
        _, token = store.new_token(user, "pictures")
        with serving(store) as address, browser() as opened:
            path = f"/jobs/{job.id}"
            take(opened, address, token, "/", theme="dark", height=420, out=folder / "dashboard-jobs.png")
            take(opened, address, token, path, theme="light", height=1750, out=folder / "dashboard-job.png")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
