"""Load pages in headless Chromium without network; return their contents and console messages."""

import dataclasses
import os
import shutil
import subprocess

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

#: Options for Chromium: a new profile, no background activity and no name resolution.
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
           "--disable-background-networking", "--disable-component-update", "--disable-sync",
           "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--hide-scrollbars")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Contents and messages of a loaded page."""

    text: str  # HTML of the page after its scripts have run
    messages: list[str]  # lines of the browser's console


def needed():
    """Skip the test if Chromium is missing, or fail it if CI is set."""
    if PROGRAM is None:
        reason = "pages are not looked at: there is no Chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def load(address, *options, profile):
    """Load a page from a file or server address, with an empty folder as browser profile."""
    ended = subprocess.run([PROGRAM, *OPTIONS, *options, f"--user-data-dir={profile}", "--dump-dom", address],
                           capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert ended.returncode == 0, ended.stderr
    return Loaded(text=ended.stdout, messages=[line for line in ended.stderr.splitlines() if "CONSOLE" in line])
