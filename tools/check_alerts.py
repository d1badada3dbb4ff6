#!/usr/bin/python3
"""Proves that the alert rules ask for metrics that exist.

    tools/check_alerts.py [--rules FILE] [--metrics FILE]

Every kvferry_... name in an expression of deploy/prometheus-rules.yml must be a name of docs/metrics.md
(which gives them without that prefix), and every rule must say what is wrong and what to do.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
METRIC = re.compile(r"\bkvferry_([a-z0-9_]+)")
DOCUMENTED = re.compile(r"`([a-z][a-z0-9_]*)(?:\{[a-z,]*\})?`")
EXPRESSION = re.compile(r"^\s*expr:\s*(.+)$", re.MULTILINE)
ALERT = re.compile(r"^\s*- alert:\s*(\w+)\n((?:(?!\s*- alert:).*\n?)*)", re.MULTILINE)


def problems(rules, metrics):
    found = []
    documented = set(DOCUMENTED.findall(metrics))
    alerts = ALERT.findall(rules)
    if not alerts:
        found.append("there is no alert")
    for name, body in alerts:
        for part in ("expr:", "severity:", "summary:", "action:"):
            if part not in body:
                found.append(f"{name} has no {part[:-1]}")
        expression = EXPRESSION.search(body)
        asked = METRIC.findall(expression[1]) if expression else []
        if not asked:
            found.append(f"{name} asks for no metric of kvferry")
        for metric in asked:
            if metric not in documented:
                found.append(f"{name} asks for kvferry_{metric}, which docs/metrics.md does not know")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rules", type=pathlib.Path, default=ROOT / "deploy/prometheus-rules.yml")
    parser.add_argument("--metrics", type=pathlib.Path, default=ROOT / "docs/metrics.md")
    options = parser.parse_args()
    rules = options.rules.read_text(encoding="utf-8")
    found = problems(rules, options.metrics.read_text(encoding="utf-8"))
    for problem in found:
        print(f"alerts: {problem}")
    if not found:
        print(f"alerts: {len(ALERT.findall(rules))} rules, every metric is documented")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
