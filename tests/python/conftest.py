"""What tests of the running server share: `onelane serve` on a free port.

ONELANE_BIN names the binary; without it these tests are skipped."""

import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ONELANE_BIN", "")
PATIENCE_SECONDS = 60
# The build has structured output where it found this.
needs_grammar = pytest.mark.skipif(not list((ROOT / ".cache").glob("xgrammar-*.tar.gz")),
                                   reason="built without XGrammar, which tools/setup.sh fetches")


class Server:
    """`onelane serve` with these options, until stop()."""

    def __init__(self, *options, model=ROOT / "models" / "mini-v41"):
        self.process = subprocess.Popen([BINARY, "serve", "-m", str(model), "--port", "0", *map(str, options)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()
        said = ""
        for said in self.process.stdout:
            if found := re.match(r"listening on (http://(.+):(\d+))\n", said):
                self.url, self.host, self.port = found[1], found[2], int(found[3])
                break
        else:
            self._reader.join()
            raise RuntimeError(f"the server did not start, its last words: {said}{''.join(self.log[-20:])}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.pid = self.process.pid

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_SECONDS) as answer:
            return answer.read().decode()

    def metrics(self):
        """Name (with its labels, as on the page) to value."""
        lines = [line for line in self.get("/metrics").splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def total(self, name):
        """A metric, whatever its labels."""
        return sum(value for found, value in self.metrics().items() if re.split(r"[{ ]", found)[0] == name)

    def running(self):
        return self.total("vllm:num_requests_running") + self.total("vllm:num_requests_waiting")

    def wait_idle(self):
        """Until no request runs or waits."""
        self.wait_running(0)

    def wait_running(self, count):
        end = time.monotonic() + PATIENCE_SECONDS
        while (running := self.running()) != count:
            assert time.monotonic() < end, f"{running} requests run or wait, not {count}"
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
            self._reader.join()


@pytest.fixture(scope="session")
def start_server():
    """Starts servers with options of their own: start_server("--api-key", "k"). They stop when the tests are over."""
    if not BINARY:
        pytest.skip("ONELANE_BIN does not name the onelane binary")
    servers = []

    def start(*options, **more):
        servers.append(Server(*options, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server):
    """One server for all tests that do not mind the others: mini-v41, no key."""
    return start_server()


@pytest.fixture(scope="session")
def small_server(start_server):
    """One that asks for the key "secret" and has a context of 512 tokens."""
    return start_server("--api-key", "secret", "--max-num-seqs", 2, "--max-model-len", 512)
