"""Options, their sources and what is said about wrong ones. No server is started."""

import json

import pytest

import fleet as fleets

COMMANDS = ("serve", "router", "bootstrap", "demo", "quantize", "sim")


def test_help_names_every_command():
    done = fleets.run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in done.stdout
    assert fleets.run().returncode == 2
    assert fleets.run("--version").stdout.startswith("kvferry ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_units_and_defaults(command):
    done = fleets.run(command, "--help")
    assert done.returncode == 0 and not done.stderr
    assert "[default: " in done.stdout and "--print-config" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines()), done.stdout


def test_help_of_serve_lists_the_librarys_options():
    text = fleets.run("serve", "--help").stdout
    assert "--heartbeat-timeout-ms ms" in text
    assert "[default: 3000 ms]" in text


@pytest.mark.parametrize("arguments, words", [
    (["nonsense"], ["nonsense"]),
    (["serve", "--no-such-option", "3"], ["--no-such-option"]),
    (["serve", "--heartbeat-timeout", "3"], ["--heartbeat-timeout", "--heartbeat-timeout-ms"]),
    (["serve", "--heartbeat-timeout-ms", "3s"], ["--heartbeat-timeout-ms", "3s", "ms"]),
    (["serve", "--max-rooms", "-1"], ["--max-rooms", "-1"]),
    (["serve", "--port", "70000"], ["--port", "70000", "65535"]),
    (["serve", "--role", "cook"], ["--role", "cook", "prefill"]),
    (["serve", "--model"], ["--model"]),
    (["serve", "stray"], ["stray"]),
    (["serve", "--engine", "llama"], ["--model"]),
    (["serve", "--engine", "synthetic", "--role", "decode"], ["--bootstrap-addresses"]),
    (["serve", "--engine", "synthetic", "--prefill-chunk-tokens", "100"],
     ["--prefill-chunk-tokens", "--page-size-tokens"]),
    (["serve", "--require-identical=perhaps"], ["--require-identical", "perhaps"]),
    (["router"], ["--prefill"]),
    (["router", "--prefill", "here", "--decode", "h:1", "--bootstrap", "h:2"], ["--prefill", "here"]),
    (["bootstrap", "--max-rows", "many"], ["--max-rows", "many", "ranks"]),
    (["bootstrap", "--config", "/no/such/file"], ["--config", "/no/such/file"]),
    (["quantize"], ["--input"]),
])
def test_wrong_usage(arguments, words):
    done = fleets.run(*arguments)
    assert done.returncode == 2, done
    assert not done.stdout
    for word in words:
        assert word in done.stderr, done.stderr


def config_of(*arguments, env=None):
    done = fleets.run(*arguments, "--print-config", env=env)
    assert done.returncode == 0, done.stderr
    rows = {}
    for line in done.stdout.splitlines()[1:]:
        cells = line.split()
        rows[cells[0]] = (cells[1], cells[-1])
    return rows


def test_sources_and_their_order(tmp_path):
    file = tmp_path / "kvferry.conf"
    file.write_text("# a comment\n"
                    "log_level = warning\n"
                    "[bootstrap]\n"
                    "max_rows = 11\nmax_body_bytes = 2048\nport = 1\n"
                    "[serve]\nmax_rooms = 7\n", encoding="ascii")
    rows = config_of("bootstrap", "--config", file, "--port", "3",
                     env={"KVFERRY_PORT": "2", "KVFERRY_MAX_BODY_BYTES": "4096"})
    assert rows["max_rows"] == ("11", "file")
    assert rows["max_body_bytes"] == ("4096", "environment")
    assert rows["port"] == ("3", "option")
    assert rows["log_level"] == ("warning", "file")
    assert rows["host"] == ("127.0.0.1", "default")


def test_units_are_shown():
    done = fleets.run("serve", "--print-config", "--bootstrap-addresses", "a:1,b:2")
    line = next(row for row in done.stdout.splitlines() if row.startswith("heartbeat_timeout_ms "))
    assert line.split() == ["heartbeat_timeout_ms", "3000", "ms", "default"]
    line = next(row for row in done.stdout.splitlines() if row.startswith("bootstrap_addresses "))
    assert line.split()[1] == "a:1,b:2"


def test_wrong_lines_of_a_file(tmp_path):
    file = tmp_path / "kvferry.conf"
    for text, words in (("max_rows = many\n", ["max_rows", "many"]),
                        ("no_such = 1\n", ["no_such"]),
                        ("[nonsense]\nport = 1\n", ["nonsense"])):
        file.write_text(text, encoding="ascii")
        done = fleets.run("bootstrap", "--config", file)
        assert done.returncode == 2, done
        for word in [*words, str(file)]:
            assert word in done.stderr, done.stderr


def test_wrong_values_in_the_environment():
    done = fleets.run("bootstrap", env={"KVFERRY_MAX_ROWS": "many"})
    assert done.returncode == 2
    assert "KVFERRY_MAX_ROWS" in done.stderr and "many" in done.stderr


def test_quantize_says_what_failed(tmp_path):
    report = tmp_path / "report.json"
    done = fleets.run("quantize", "--input", tmp_path / "none.gguf", "--output",
                      tmp_path / "out.gguf", "--json", report)
    assert done.returncode == 1
    assert "none.gguf" in done.stderr
    result = json.loads(report.read_text(encoding="utf-8"))
    assert result["command"] == "quantize" and result["ok"] is False and result["summary"]["reason"]
    assert not (tmp_path / "out.gguf").exists()
