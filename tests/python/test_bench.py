"""`onelane bench serve` against `onelane serve`: what the bench counts is what the server counted."""

import json
import subprocess

from conftest import BINARY

SHORT = ["--lib", "--contexts", "0", "--prefill", "none", "--warmup", "0", "--poll", "0.2", "--ready-least", "0.2", "--ready-hold", "0.2"]


def bench(server, folder, *options):
    """The JSON of a bench. Its exit code is its verdict on this machine, which may be busy: it must have come to one."""
    out = folder / "bench.json"
    done = subprocess.run([BINARY, "bench", "serve", server.url, *map(str, options), "--json", str(out),
                           "--receipt", str(folder / "receipt.json")], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(out.read_text()), done


def test_windows_agree_with_the_servers_counter(server, tmp_path):
    report, done = bench(server, tmp_path, *SHORT, "--concurrency", "1,2", "--duration", 2)
    assert report["metadata"]["engine"] == "onelane"
    cells = report["results"]
    assert [cell["concurrency"] for cell in cells] == [1, 2]
    for cell in cells:
        assert cell["aggregate_tps_source"] == "openai_continuous_usage"
        assert not {"usage_missing", "usage_decreases", "null_delta", "stream_error", "no_tokens", "tokens_disagree"} & set(cell["flags"])
        assert cell["aggregate_tps"] > 0
        assert cell["spec_accept_length"] is None or cell["spec_accept_length"] >= 1
    client = sum(cell["client_tokens_same_interval"] for cell in cells)
    counted = sum(cell["server_tokens"] for cell in cells)
    assert counted > 100
    assert abs(client - counted) <= 0.01 * counted, (client, counted)

    verified = subprocess.run([BINARY, "receipts", "verify", str(tmp_path / "receipt.json")], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    assert done.stdout.splitlines()[-1].strip()


def test_bursts_are_the_servers_tokens_to_the_last(server, tmp_path):
    # The test before ends its streams where its windows end: the server may still be writing into the last of them.
    server.wait_idle()
    before = server.total("vllm:generation_tokens_total")
    report, _ = bench(server, tmp_path, *SHORT, "--no-decode", "--run-burst", "--concurrency", 2, "--burst-requests", 3, "--max-tokens", 20)
    [burst] = report["burst_results"]
    assert (burst["requests"], burst["failed"], burst["total_tokens"]) == (6, 0, 120)
    # Two more warm up.
    assert server.total("vllm:generation_tokens_total") - before == 120 + 40


def test_strict_mode_grades_answers(server, tmp_path):
    report, _ = bench(server, tmp_path, "--classes", "reasoning", "--respect-eos", "--temperature", 0, "--concurrency", 2, "--warmup", 0,
                      "--duration", 3, "--poll", 0.2, "--ready-least", 0, "--ready-hold", 0)
    [cell] = report["results"]
    assert "stream_error" not in cell["flags"], cell["errors"]
    assert cell["workload"] == "reasoning"
    if cell["requests_completed"]:
        graded = cell["answers"]
        assert graded["right"] + graded["wrong"] + graded["not_graded"] == cell["requests_completed"]


def test_flags_and_servers_that_cannot_be_are_refused(start_server):
    for arguments, said in ((["http://127.0.0.1:1"], "cannot connect"), (["localhost:8000"], "http://HOST"),
                            (["http://127.0.0.1:1", "--concurrency", "many"], "--concurrency")):
        done = subprocess.run([BINARY, "bench", "serve", *arguments], capture_output=True, text=True)
        assert done.returncode in (1, 2)
        assert said in done.stderr
