"""A headless Chromium that opens a page, runs a script in it, and returns what the script found."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 600
"""Time limit of the browser. It only ends one that hangs."""

_RUN = """
<script>
const hash = async value => { location.hash = value; await new Promise(done => setTimeout(done, 50)); };
const found = {};
(async () => { %s })().catch(error => console.error(error)).finally(() => {
  const result = document.createElement("pre");
  result.id = "found-by-the-test";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
});
</script>
</body>"""


def find() -> str | None:
    """Return the path of a Chromium; None if none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def run(page: Path, script: str, folder: Path, fragment: str = "") -> tuple[dict[str, Any], list[str]]:
    """Open a copy of a page and run a script at its end.

    Args:
        page: The page.
        script: JavaScript that sets properties of `found`; `await hash(value)` changes the fragment of the address.
        folder: A folder for the copy and for the browser's profile.
        fragment: The fragment of the address, with its "#".

    Returns:
        `found`, and the messages of the console.
    """
    copy = folder / "page.html"
    copy.write_text(page.read_text().replace("</body>", _RUN % script))
    command = [str(find()), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr", "--v=0", "--virtual-time-budget=10000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"{copy.as_uri()}{fragment}"], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    text = re.search(r'<pre id="found-by-the-test">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text, done.stderr
    return json.loads(html.unescape(text[1])), [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
