"""kvferry demo with the engine that needs no model: what it prints, writes and leaves behind."""

import json
import os
import pathlib
import signal
import subprocess

import fleet as fleets


def demo(*arguments, **options):
    return fleets.run("demo", "--engine", "synthetic", *arguments, **options)


def children_of(pid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        state, parent = stat.rsplit(")", 1)[1].split()[:2]
        if int(parent) == pid and state != "Z":
            found.append(int(entry.name))
    return found


def alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_passes_and_writes_its_result(tmp_path):
    path = tmp_path / "demo.json"
    done = demo("--prompts", 5, "--cancelled", 2, "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo: PASS"
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["command"] == "demo" and result["ok"] is True and result["version"]
    summary = result["summary"]
    assert summary["identical"] == summary["prompts"] == len(result["rows"]) == 5
    assert summary["cancelled"] == 2
    assert summary["pages_granted"] == summary["pages_returned"] > 0
    assert summary["pages_held"] == summary["pages_released"] > 0
    assert summary["quarantined_pages"] == 0
    for row in result["rows"]:
        assert row["identical"] is True
        assert row["pages"] > 0 and row["bytes"] > 0 and row["tokens"] > 0
        assert 0 <= row["overlap"] <= 1
        assert row["prefill_chunks"] < 2 or row["first_page_before_prefill_end"] is True


def test_passes_with_the_real_model(model):
    done = fleets.run("demo", "--model", model, "--prompts", 4, "--cancelled", 1,
                      deadline_s=2 * fleets.DEADLINE_S)
    # Four prompts are judged as the demo's twenty-four are.
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo: PASS"


def test_json_on_stdout_is_alone_there():
    done = demo("--prompts", 1, "--cancelled", 0, "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert done.stderr.splitlines()[-1] == "demo: PASS"


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen([fleets.PROGRAM, "demo", "--engine", "synthetic"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**fleets.environment(), "TMPDIR": str(tmp_path)})
    children = fleets.eventually(lambda: children_of(process.pid), "it has started a server")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=fleets.DEADLINE_S)
    assert process.returncode == 1, out + err
    assert "FAIL interrupted" in out.splitlines()[-1]
    assert not any(alive(child) for child in children)
    assert not list(tmp_path.iterdir())


def test_a_killed_demo_takes_its_servers_along(tmp_path):
    process = subprocess.Popen([fleets.PROGRAM, "demo", "--engine", "synthetic"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**fleets.environment(), "TMPDIR": str(tmp_path)})
    children = fleets.eventually(lambda: children_of(process.pid), "it has started a server")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(fleets.DEADLINE_S)
    fleets.eventually(lambda: not any(alive(child) for child in children), "the servers have ended")


def test_a_missing_model_is_wrong_usage(tmp_path):
    done = fleets.run("demo", "--model", tmp_path / "none.gguf")
    assert done.returncode == 2
    assert "none.gguf" in done.stderr and "--model" in done.stderr
