#!/usr/bin/env python3
"""What a token costs more when it comes through the server: HTTP, JSON, streaming, scheduling.

    bench/serve_overhead.py [--build build/release] [--model models/mini-v41] [--tokens 512] [--rounds 5]

One stream, no drafts, one engine thread, so that server and client have a processor of their own. Prints the least time per
token as a client sees it between the first and the last event of a stream, the same of the engine in this run without a
server (batch_bench), the CPU time that threads other than the engine's take per token, and the ratios.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import time
import urllib.request


def cpu_seconds(pid: int) -> dict[int, float]:
    """CPU time of every thread of a process so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        seconds[int(task.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds


def stream(url: str, tokens: int) -> float:
    """Seconds per token of one streamed completion, prompt and first token aside."""
    body = {"model": "m", "prompt": "int main(int argc, char** argv) {\n", "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0, "stream": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    times = []
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    return (times[-1] - times[0]) / (tokens - 1)


def serve(options) -> tuple[float, float]:
    """Least seconds per token through the server, and CPU seconds per token of all but its busiest thread."""
    binary = options.build / "src/cli/onelane"
    command = [binary, "serve", "-m", options.model, "--served-model-name", "m", "--port", "0", "--threads", "1",
               "--draft-schedule", "0", "--no-prefix-cache", "--no-log-requests"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            for line in server.stdout:
                if found := re.search(r"http://[\d.]+:\d+", line):
                    break
            else:
                raise SystemExit("serve_overhead: the server did not start")
            stream(found[0], options.tokens)
            before = cpu_seconds(server.pid)
            least = min(stream(found[0], options.tokens) for _ in range(options.rounds))
            spent = sorted(after - before.get(task, 0.0) for task, after in cpu_seconds(server.pid).items())
            return least, sum(spent[:-1]) / (options.tokens * options.rounds)
        finally:
            server.terminate()


def engine(options) -> float:
    """Least seconds per token of the engine alone."""
    command = [options.build / "bench/batch_bench", options.model, "--threads", "1", "--prompt", "16", "--tokens", str(options.tokens),
               "--schedule", "0", "--streams", "1", "--repeat", str(options.rounds)]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in table.splitlines() if line.startswith("plain")]
    return 1 / max(float(row[2]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--model", default="models/mini-v41")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    alone = engine(options)
    served, others = serve(options)
    print(f"engine alone        {alone * 1e6:8.1f} us a token")
    print(f"through the server  {served * 1e6:8.1f} us a token, {100 * (served / alone - 1):+.1f} %")
    print(f"other threads' CPU  {others * 1e6:8.1f} us a token, {100 * others / alone:.1f} %")


if __name__ == "__main__":
    main()
