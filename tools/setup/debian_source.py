"""Fetches Debian source packages from the mirrors that apt is configured with.

Machines seldom list source packages, so apt-get gets a list of its own for the one call; the
machine's lists and caches stay as they are, and no rights are needed.
"""

import os
import subprocess

import clients
from cache import SetupError

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def configured_mirrors():
    """Returns (site, release) of each of Debian's own archives that apt is configured with."""
    found = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(COMPONENT)|$(SITE)|$(RELEASE)",
         "Identifier: Packages"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    mirrors = []
    for line in found.splitlines():
        origin, component, site, release = line.split("|")
        if origin == "Debian" and component == "main" and (site, release) not in mirrors:
            mirrors.append((site, release))
    return mirrors


def download(package, version, target, progress, staging):
    """Downloads the files of a source package into target; apt checks them by Debian's keys."""
    mirrors = configured_mirrors()
    if not mirrors:
        raise SetupError(f"{progress.title}: apt knows no mirror of Debian (apt-get indextargets)\n"
                         "  fix: add one to /etc/apt/sources.list.d and run apt-get update")
    sources = staging / "sources.list"
    sources.write_text("".join(f"deb-src [signed-by={KEYRING}] {site} {release} main\n"
                               for site, release in mirrors), encoding="ascii")
    for folder in ("lists/partial", "cache/archives/partial"):
        (staging / folder).mkdir(parents=True)
    options = ["-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null",
               "-o", f"Dir::State::Lists={staging / 'lists'}", "-o", f"Dir::Cache={staging / 'cache'}",
               "-o", f"APT::Sandbox::User={'root' if os.getuid() == 0 else ''}"]
    progress.watched = target
    clients.call(["apt-get", *options, "update", "-q", "--error-on=any"], progress, cwd=target)
    clients.call(["apt-get", *options, "source", "-q", "--download-only", f"{package}={version}"],
                 progress, cwd=target)
