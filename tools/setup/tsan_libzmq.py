#!/usr/bin/python3
"""Builds libzmq with ThreadSanitizer into the cache folder, for the preset tsan alone.

    tools/setup/tsan_libzmq.py

ThreadSanitizer sees only what was compiled with it: with Debian's libzmq it can't tell that data
handed over through a socket is handed over, and reports races that are none. The source is
Debian's own package of the version that the other presets link, with its patches; the result is a
static library with a pkg-config file in .cache/libzmq-tsan. Built anew when the source, the
compiler or the flags have changed.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import cache
import clients
from cache import SetupError

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = "libzmq-source"
NAME = "libzmq-tsan"
COMPILERS = {"C": "gcc", "CXX": "g++"}
FLAGS = "-O1 -g1 -fPIC -fsanitize=thread -fno-omit-frame-pointer"
OPTIONS = ("-DBUILD_SHARED=OFF", "-DBUILD_STATIC=ON", "-DBUILD_TESTS=OFF", "-DWITH_DOCS=OFF",
           "-DENABLE_CPACK=OFF", "-DWITH_LIBSODIUM=ON", "-DENABLE_CURVE=ON", "-DENABLE_DRAFTS=OFF",
           "-DCMAKE_BUILD_TYPE=None")
PKG_CONFIG = """\
prefix={prefix}
Name: libzmq
Description: libzmq {version}, static, built with ThreadSanitizer
Version: {version}
Libs: -L${{prefix}}/lib -lzmq -lsodium -lpthread -lrt
Cflags: -I${{prefix}}/include -DZMQ_STATIC
"""


def manifest_entry():
    manifest = json.loads((HERE / "artefacts.json").read_text(encoding="utf-8"))
    return next(entry for entry in manifest["artefacts"] if entry["name"] == SOURCE)


def recipe(entry):
    """What the result depends on, as text."""
    versions = [subprocess.run([compiler, "--version"], stdout=subprocess.PIPE, text=True,
                               check=True).stdout.splitlines()[0] for compiler in COMPILERS.values()]
    script = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    return json.dumps([[item["sha256"] for item in entry["files"]], versions, script])


def unpack(entry, source, staging):
    """Unpacks and patches the source; returns its folder."""
    for item in entry["files"]:
        with tarfile.open(source / item["to"]) as archive:
            archive.extractall(staging / "source")
    folders = [path for path in (staging / "source").iterdir() if path.name != "debian"]
    if len(folders) != 1:
        raise SetupError(f"{SOURCE}: {len(folders)} folders in the archive instead of one")
    patches = staging / "source/debian/patches"
    for name in (patches / "series").read_text(encoding="utf-8").split():
        patched = subprocess.run(["patch", "-p1", "--batch", "-i", patches / name], cwd=folders[0],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 check=False)
        if patched.returncode != 0:
            raise SetupError(f"{SOURCE}: Debian's patch {name} does not apply\n{patched.stdout}")
    return folders[0]


def build(entry, staging, folder, jobs):
    version = entry["version"].split("-")[0]
    progress = clients.Progress(f"libzmq {version} with ThreadSanitizer", verb="building")
    source = unpack(entry, folder / SOURCE, staging)
    tree = staging / "build"
    compilers = [f"-DCMAKE_{language}_COMPILER={name}" for language, name in COMPILERS.items()]
    flags = [f"-DCMAKE_{language}_FLAGS={FLAGS}" for language in COMPILERS]
    clients.call(["cmake", "-G", "Ninja", "-S", source, "-B", tree, *compilers, *flags, *OPTIONS],
                 progress)
    clients.call(["cmake", "--build", tree, "-j", jobs, "--target", "libzmq-static"], progress)
    result = staging / "result"
    (result / "lib/pkgconfig").mkdir(parents=True)
    (result / "include").mkdir()
    shutil.copy(tree / "lib/libzmq.a", result / "lib")
    for header in ("zmq.h", "zmq_utils.h"):
        shutil.copy(source / "include" / header, result / "include")
    (result / "lib/pkgconfig/libzmq.pc").write_text(
        PKG_CONFIG.format(prefix=folder / NAME, version=version), encoding="ascii")
    (result / "recipe").write_text(recipe(entry), encoding="ascii")
    shutil.rmtree(folder / NAME, ignore_errors=True)
    os.rename(result, folder / NAME)
    progress.done()


def main():
    entry = manifest_entry()
    folder = cache.folder()
    stamp = folder / NAME / "recipe"
    if stamp.is_file() and stamp.read_text(encoding="ascii") == recipe(entry):
        return 0
    subprocess.run([sys.executable, HERE / "artefacts.py", SOURCE], check=True)
    with cache.locked(folder), tempfile.TemporaryDirectory(prefix=cache.STAGING_PREFIX,
                                                           dir=folder) as name:
        build(entry, pathlib.Path(name), folder, os.environ.get("JOBS") or str(os.cpu_count()))
    return 0


if __name__ == "__main__":
    cache.run_main(main)
