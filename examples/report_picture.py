"""Make docs/images/report.png: two sections of the demonstration's report, as a browser shows them.

    silomix demo --out demo-output
    python examples/report_picture.py demo-output/report.html docs/images/report.png

Needs playwright, and Debian's chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(page_file: str, picture: str) -> None:
    """Open the page, show its profiles, and write the picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 760})
        page.goto(Path(page_file).resolve().as_uri())
        page.locator("#profiles").scroll_into_view_if_needed()
        page.evaluate("document.querySelector('#profiles').scrollIntoView()")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
