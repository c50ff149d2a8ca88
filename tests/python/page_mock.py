"""A scripted server for the page: the real files and policy, answers that a real model would hardly give.

The last user message chooses the script, see SCRIPTS. Run it by hand to work on the page:
    python tests/python/page_mock.py [PORT]
"""

import http.server
import json
import math
import pathlib
import re
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    '<b style="color:red">bold</b> [link](javascript:alert(1)) &lt;i&gt; </div></main>\n'
)
CODE = "Here is a loop:\n\n```python\nfor line in open(path):\n    print(line.rstrip())\n```\n\nIt prints every line."


def policy():
    """The Content-Security-Policy of src/api/page.cc."""
    source = (ROOT / "src/api/page.cc").read_text()
    literal = re.search(r"kPolicy =((?:\s*\"[^\"]*\")+);", source).group(1)
    return "".join(re.findall(r'"([^"]*)"', literal))


def pieces(text, size=4):
    return [text[i : i + size] for i in range(0, len(text), size)]


def content(text, pause=0.0):
    for piece in pieces(text):
        yield {"content": piece}, None
        time.sleep(pause)


def thinking(text):
    for piece in pieces(text):
        yield {"reasoning_content": piece, "reasoning": piece}, None


def plain():
    yield from thinking("The user wants a loop.\nA short one will do.")
    yield from content(CODE)
    yield {}, "stop"


def hostile():
    yield from thinking(HOSTILE)
    yield from content(HOSTILE + "```" + '"><img src=x>' + "\n" + HOSTILE + "```\n" + HOSTILE)
    yield {"tool_calls": [call(0, name=HOSTILE, arguments=json.dumps({"x": HOSTILE}), id="call_1")]}, None
    yield {}, "tool_calls"


def call(index, name=None, arguments="", id=None):
    part = {"index": index, "function": {"arguments": arguments}}
    if name is not None:
        part |= {"id": id, "type": "function"}
        part["function"]["name"] = name
    return part


def tools():
    yield from thinking("Two cities, two calls.")
    for index, city in enumerate(["Oslo", "Lima"]):
        yield {"tool_calls": [call(index, name="get_weather", id=f"call_{index}")]}, None
        for piece in pieces(json.dumps({"city": city, "station": 12345678901234567890, "days": [1, 2]}), 7):
            yield {"tool_calls": [call(index, arguments=piece)]}, None
    yield {}, "tool_calls"


def slow():
    for word in range(100000):
        yield {"content": f"word{word} "}, None
        time.sleep(0.02)


def breaks():
    yield from content("Half an ans")
    raise ConnectionAbortedError


def fails():
    yield from content("Half an ans")
    yield {"error": {"message": "the step gave a NaN", "type": "server_error"}}, None


def cut():
    yield from content("as long as it was allowed to be")
    yield {}, "length"


SCRIPTS = {f.__name__: f for f in (plain, hostile, tools, slow, breaks, fails, cut)}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json", headers=()):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message, param=None):
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
        self.reply(status, json.dumps({"error": error}).encode())

    def allowed(self):
        key = self.server.key
        if not key or self.headers["authorization"] == f"Bearer {key}":
            return True
        self.refuse(401, "the API key is missing or wrong")
        return False

    def do_GET(self):
        if self.path == "/metrics":
            if self.allowed():
                self.reply(200, self.server.metrics().encode(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models":
            if self.allowed():
                self.reply(200, json.dumps({"data": [{"id": "mini-v41", "max_model_len": 8192}]}).encode())
        else:
            name = "index.html" if self.path == "/" else self.path.removeprefix("/ui/")
            folder = ROOT / ("third_party" if name.startswith("uplot/") else "ui")
            file = folder / name
            if ".." in name or not file.is_file():
                return self.refuse(404, f"there is no {self.path}")
            headers = [("content-security-policy", policy()), ("x-content-type-options", "nosniff")]
            self.reply(200, file.read_bytes(), TYPES[file.suffix], headers)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(request)
        if not self.allowed():
            return
        users = [m["content"] for m in request["messages"] if m["role"] == "user"]
        if users[-1] == "refused":
            return self.refuse(400, "must be at most 2", "temperature")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            self.stream(SCRIPTS.get(re.match(r"\w*", users[-1]).group(), plain)())
        except ConnectionAbortedError:
            pass  # the script's own
        except OSError:
            self.server.hung_up.set()

    def stream(self, script):
        self.wfile.write(b": keep-alive\r\n\r\n")
        for tokens, (delta, finish) in enumerate(script, 1):
            usage = {"prompt_tokens": 50, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 32}}
            chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}
            if "error" in delta:
                chunk = delta
            self.wfile.write(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode())
            self.server.generated += 1
        self.wfile.write(f'data: {{"choices": [], "usage": {json.dumps(usage)}}}\n\ndata: [DONE]\n\n'.encode())


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.key = ""
        self.requests = []  # bodies of the chat requests
        self.generated = 0
        self.hung_up = threading.Event()  # a client left before its stream was over
        self.reads = 0
        self.missing = ()  # metric names that are left out
        self.url = f"http://127.0.0.1:{self.server_port}"

    def metrics(self):
        """Counters that go on by about one second of work per read."""
        self.reads += 1
        t = self.reads
        busy = [0.6 + 0.3 * math.sin(i / 9) + 0.1 * math.sin(i * 1.7) for i in range(t)]
        steps = sum(int(180 * b) for b in busy)
        accepted = sum(int(180 * b * (1.9 + 0.5 * math.sin(i / 13))) for i, b in enumerate(busy))
        values = {
            "vllm:num_requests_running": 1 if t % 4 else 2,
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0.18 + 0.12 * math.sin(t / 20) ** 2,
            "vllm:prompt_tokens_total": 900 * t,
            "vllm:generation_tokens_total": steps + accepted,
            "vllm:prefix_cache_queries_total": 1000 * (t // 6),
            "vllm:prefix_cache_hits_total": sum(600 + 250 * math.sin(i) for i in range(t // 6)),
            "vllm:spec_decode_num_drafts_total": steps,
            "vllm:spec_decode_num_accepted_tokens_total": accepted,
            "onelane_steps_total": steps,
            "onelane_step_seconds_total": sum(
                int(180 * b) * (0.0046 + 0.0008 * math.sin(i / 5)) for i, b in enumerate(busy)
            ),
        }
        lines = ["# HELP anything a line that is not a sample", "broken line", 'seconds_bucket{le="+Inf"} 1']
        values = {name: value for name, value in values.items() if name not in self.missing}
        lines += [f'{name}{{model_name="mini-v41"}} {value}' for name, value in values.items()]
        return "\n".join(lines) + "\n"


if __name__ == "__main__":
    server = Server(int(sys.argv[1]) if len(sys.argv) > 1 else 8001)
    print(f"{server.url}  messages: {', '.join(SCRIPTS)}, refused")
    server.serve_forever()
