#!/usr/bin/python3
"""Tells what SGLang 0.5.23 does when the fault of a drill strikes it.

    main.py [--asked] [--no-fault] NAME

The processes run SGLang's unmodified disaggregation classes on this host's CPU (ranks.py). Exit code: 0
the failure did not show, 1 it showed, 3 the story could not be told. `kvferry drill NAME --against
sglang` runs this with --asked. --no-fault is the control: the same story and the same judge without
the fault, which must end with 0.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent))

import interleave
import lost_abort
import malformed
import restart
import scene as scenes
import silent_peer

STORIES = {"interleave": interleave, "restart": restart, "silent-peer": silent_peer,
           "lost-abort": lost_abort, "malformed": malformed}
EXIT_DID_NOT_SHOW, EXIT_SHOWED, EXIT_NOT_RUN = 0, 1, 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("name", choices=STORIES)
    parser.add_argument("--asked", action="store_true", help="one JSON line for each line 'next'")
    parser.add_argument("--no-fault", action="store_true", help="the same without its fault")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    about = {"version": "SGLang " + importlib.metadata.version("sglang"),
             "settings": f"Mooncake backend with a null engine, Python {sys.version.split()[0]}"}
    if options.asked:
        print("ready", json.dumps(about), flush=True)
    else:
        print(f"{options.name}: {STORIES[options.name].STORY} {about['version']}", flush=True)
    scene = scenes.Scene(options.asked, not options.no_fault)
    try:
        STORIES[options.name].tell(scene)
        scene.end()
    except scenes.NotRun as error:
        scene.end(str(error))
        return EXIT_NOT_RUN
    return EXIT_SHOWED if scene.findings else EXIT_DID_NOT_SHOW


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    os._exit(code)  # Relay threads and ranks are not waited for; ranks end with this process.
