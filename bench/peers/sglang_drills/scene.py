"""What a story tells: lines, findings (what must not be) and figures.

For people each is a line of text. For `kvferry drill --against sglang`, which asks for them one by one
with a line `next`, each is one line of JSON: {"say": text}, {"find": invariant, "what": text},
{"figure": name, "value": number}, and at the end {"end": "told"} or {"end": "not run", "why": text}.
"""

import json
import sys
import time


class NotRun(Exception):
    """The story could not be told, or its fault did not strike; the text says why."""


class Scene:
    def __init__(self, asked, fault):
        self.asked, self.fault = asked, fault
        self.began = time.monotonic()
        self.findings = 0

    def say(self, text):
        self._tell({"say": text}, text)

    def find(self, invariant, what):
        self.findings += 1
        self._tell({"find": invariant, "what": what}, f"{invariant}: {what}")

    def figure(self, name, value):
        self._tell({"figure": name, "value": round(value, 3)}, f"{name} = {value:.3f}")

    def end(self, why=None):
        told = {"end": "not run", "why": why} if why else {"end": "told"}
        self._tell(told, f"NOT RUN: {why}" if why else "")

    def _tell(self, line, text):
        if not self.asked:
            if text:
                print(f"{time.monotonic() - self.began:7.3f} s  {text}", flush=True)
            return
        if sys.stdin.readline().strip() != "next":
            raise KeyboardInterrupt
        print(json.dumps(line), flush=True)
