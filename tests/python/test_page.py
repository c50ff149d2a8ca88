"""The page in a browser: against a scripted server for what a model rarely says, and against `onelane serve`."""

import http.client
import pathlib
import re
import shutil
import threading

import page_mock
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
OUTPUT = page_mock.ROOT / "build" / "test-output"
pytestmark = pytest.mark.skipif(not pathlib.Path(CHROMIUM).exists(), reason="there is no chromium")

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => violations.push(`${e.violatedDirective}: ${e.blockedURI}`));
"""
# One poll is one second of the charts; this makes seconds short.
HURRY = """
const now = performance.now.bind(performance), later = setTimeout;
performance.now = () => now() * 40;
window.setTimeout = (task, ms, ...rest) => later(task, ms / 40, ...rest);
"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def mock():
    server = page_mock.Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Visit:
    """The page at `url`, with everything refused that is not this server, and everything noted that went wrong."""

    def __init__(self, browser, url, script=WATCH, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(10000)
        self.page.add_init_script(script)
        self.errors, self.foreign = [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.context.route(lambda to: not to.startswith((url, "data:")), self._refuse)
        self.page.goto(url)
        expect(self.page.locator("#model")).not_to_be_empty()

    def _refuse(self, route):
        self.foreign.append(route.request.url)
        route.abort()

    def say(self, text):
        self.page.locator("#prompt").fill(text)
        self.page.keyboard.press("Enter")

    def answer(self):
        """The last answer, when it is complete."""
        answer = self.page.locator("article.answer").last
        expect(answer).to_have_attribute("aria-busy", "false", timeout=60000)
        return answer

    def wait_for(self, condition):
        """Playwright's own wait evaluates strings inside the page, which the policy forbids."""
        for _ in range(400):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"never became true: {condition}")

    def check(self, errors=()):
        assert self.page.evaluate("window.violations") == []
        assert self.foreign == []
        left = [e for e in self.errors if not any(re.search(pattern, e) for pattern in errors)]
        assert left == []


@pytest.fixture
def visit(browser, mock):
    made = Visit(browser, mock.url)
    yield made
    made.context.close()


def test_loads_without_a_complaint(visit):
    page = visit.page
    expect(page.locator("#model")).to_have_text("mini-v41")
    expect(page.locator("#context")).to_have_text("8,192 tokens")
    expect(page.locator("#status")).to_contain_text("running")
    expect(page.locator("#prompt")).to_be_focused()
    assert page.locator(".tile canvas").count() == 5
    visit.check()


def test_the_watch_sees_a_violation(visit):
    """Planted: what `check` must catch."""
    visit.page.evaluate("document.body.setAttribute('style', 'color: red')")
    visit.page.evaluate("document.body.append(Object.assign(new Image, {src: 'https://example.com/x.png'}))")
    visit.wait_for("window.violations.length == 2")
    with pytest.raises(AssertionError):
        visit.check()


def test_streams_an_answer_with_thinking_folded(visit, mock):
    visit.say("plain please")
    answer = visit.answer()
    folded = answer.locator("details.thinking")
    assert folded.get_attribute("open") is None
    expect(folded.locator("summary")).to_contain_text("Thought for")
    expect(folded.locator(".body")).not_to_be_visible()
    folded.locator("summary").click()
    expect(folded.locator(".body")).to_have_text("The user wants a loop.\nA short one will do.", use_inner_text=True)
    expect(answer.locator("pre")).to_have_text("for line in open(path):\n    print(line.rstrip())", use_inner_text=True)
    assert answer.locator("pre").get_attribute("data-language") == "python"
    expect(answer).to_contain_text("It prints every line.")
    expect(answer.locator("footer")).to_contain_text("32 of 50 prompt tokens cached")
    request = mock.requests[-1]
    assert request["stream"] and request["stream_options"]["include_usage"]
    assert request["messages"] == [{"role": "user", "content": "plain please"}]
    visit.check()


def test_sends_the_settings_and_the_history(visit, mock):
    page = visit.page
    filled = {"temperature": "0.5", "top-p": "0.9", "max-tokens": "99", "seed": "7", "effort": "high"}
    for name, value in filled.items():
        page.locator(f"#{name}").fill(value)
    page.locator("#system").fill("Be brief.")
    page.locator("#tools").fill('[{"type": "function", "function": {"name": "f", "parameters": {}}}]')
    visit.say("plain")
    visit.answer()
    request = mock.requests[-1]
    assert [request[k] for k in ("temperature", "top_p", "max_tokens", "seed")] == [0.5, 0.9, 99, 7]
    assert request["reasoning_effort"] == "high" and request["chat_template_kwargs"] == {"thinking": True}
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert request["tools"][0]["function"]["name"] == "f"

    page.locator("#effort").fill("55")
    visit.say("cut")
    expect(visit.answer().locator("footer")).to_contain_text("cut at the token limit")
    request = mock.requests[-1]
    assert request["reasoning_effort"] == 55
    assert [m["role"] for m in request["messages"]] == ["system", "user", "assistant", "user"]
    assert request["messages"][2]["content"].startswith(page_mock.CODE)

    page.locator("#thinking").uncheck()
    page.locator("#again").click()
    visit.answer()
    assert [m["role"] for m in mock.requests[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert mock.requests[-1]["chat_template_kwargs"] == {"thinking": False}
    assert "reasoning_effort" not in mock.requests[-1]
    assert page.locator("article.answer").count() == 2

    page.locator("#clear").click()
    assert page.locator("article").count() == 0
    visit.say("cut")
    visit.answer()
    assert [m["role"] for m in mock.requests[-1]["messages"]] == ["system", "user"]
    visit.check()


def test_tools_that_are_not_json_are_not_sent(visit, mock):
    for wrong in ("[{", '{"type": "function"}'):
        visit.page.locator("#tools").fill(wrong)
        expect(visit.page.locator("#tools-error")).to_contain_text("Not usable")
        visit.say("plain")
    assert mock.requests == []
    visit.page.locator("#tools").fill("")
    visit.say("plain")
    visit.answer()
    assert "tools" not in mock.requests[-1]
    visit.check()


def test_a_wrong_setting_is_shown_even_when_the_panel_is_closed(visit, mock):
    visit.page.locator("#temperature").fill("3")
    visit.page.locator("#toggle").click()
    visit.say("plain")
    expect(visit.page.locator("#temperature")).to_be_focused()
    assert mock.requests == []
    visit.check()


def test_tool_calls_are_shown_and_answered(visit, mock):
    page = visit.page
    visit.say("tools")
    answer = visit.answer()
    assert answer.locator("details.call summary").all_inner_texts() == ["Call get_weather"] * 2
    laid_out = '{\n  "city": "Oslo",\n  "station": 12345678901234567890,\n  "days": [\n    1,\n    2\n  ]\n}'
    expect(answer.locator("details.call pre").first).to_have_text(laid_out, use_inner_text=True)
    expect(page.locator("#send")).to_have_text("Send results")
    answer.locator("textarea").nth(0).fill("3 degrees")
    answer.locator("textarea").nth(1).fill("20 degrees")
    page.locator("#send").click()
    visit.answer()
    sent = mock.requests[-1]["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[1]["reasoning_content"] == "Two cities, two calls."
    assert [(m["tool_call_id"], m["content"]) for m in sent[2:]] == [("call_0", "3 degrees"), ("call_1", "20 degrees")]
    assert sent[1]["tool_calls"][1]["function"]["name"] == "get_weather"
    visit.check()


def test_hostile_text_stays_text(visit):
    page = visit.page
    visit.say("hostile " + page_mock.HOSTILE)
    answer = visit.answer()
    answer.locator("summary").first.click()
    assert page.title() == "Onelane"
    assert page.locator("#log img, #log script, #log b, #log a, #log [onerror]").count() == 0
    assert answer.locator(".thinking .body").inner_text().strip() == page_mock.HOSTILE.strip()
    assert page_mock.HOSTILE.strip() in answer.locator(":scope > .body").inner_text()
    assert page_mock.HOSTILE.strip() in answer.locator("details.call code").inner_text() + "\n"
    visit.check()


@pytest.mark.parametrize("how", ["Escape", "button", "clear"])
def test_stop(visit, mock, how):
    page = visit.page
    visit.say("slow")
    answer = page.locator("article.answer")
    expect(answer).to_contain_text("word3")
    expect(answer.locator("footer")).to_contain_text("tokens/s")
    expect(page.locator("#status")).to_contain_text("running")
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.locator("#stop" if how == "button" else "#clear").click()
    assert mock.hung_up.wait(10)
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#prompt")).to_be_focused()
    if how == "clear":
        assert answer.count() == 0
    else:
        expect(answer.locator("footer")).to_contain_text("stopped")
        expect(page.locator("#announce")).to_have_text("Stopped")
    visit.say("cut")
    expect(visit.answer()).to_contain_text("as long as it was allowed to be")
    roles = [m["role"] for m in mock.requests[-1]["messages"]]
    assert roles == (["user"] if how == "clear" else ["user", "assistant", "user"])
    visit.check()


def test_the_end_stays_in_sight_until_the_reader_scrolls_up(visit):
    page = visit.page
    gap = "(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)(log)"
    page.set_viewport_size({"width": 390, "height": 500})
    visit.say("slow")
    visit.wait_for("log.scrollTop > 200")
    assert page.evaluate(gap) < 40
    page.locator("#log").focus()
    page.keyboard.press("PageUp")
    visit.wait_for(f"{gap} > 100")
    top = page.evaluate("log.scrollTop")
    page.wait_for_timeout(500)
    assert page.evaluate("log.scrollTop") <= top
    page.keyboard.press("End")
    visit.wait_for(f"{gap} < 40")
    before = page.evaluate("log.scrollHeight")
    visit.wait_for(f"log.scrollHeight > {before} + 100")
    assert page.evaluate(gap) < 40
    page.keyboard.press("Escape")
    visit.answer()
    visit.check()


@pytest.mark.parametrize(
    "script, says, noise",
    [
        ("fails", "the step gave a NaN", []),
        ("breaks", "ended before it was complete", []),
        ("refused", "must be at most 2 (temperature)", ["400"]),
    ],
)
def test_errors_are_said_and_survived(visit, script, says, noise):
    visit.say(script)
    answer = visit.answer()
    expect(answer.get_by_role("alert")).to_contain_text(says)
    if script != "refused":
        expect(answer).to_contain_text("Half an ans")
    visit.say("cut")
    expect(visit.answer()).to_contain_text("as long as it was allowed to be")
    visit.check(noise)


def test_a_key_is_asked_for_and_kept_in_the_session(browser, mock):
    mock.key = "secret"
    context = browser.new_context()
    page = context.new_page()
    page.goto(mock.url)
    expect(page.locator("#status")).to_have_text("needs a key")
    page.locator("#prompt").fill("plain")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the API key is missing or wrong")
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_contain_text("mini-v41")
    page.locator("#again").click()
    expect(page.locator("article.answer")).to_contain_text("It prints every line.")
    assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
    page.reload()
    expect(page.locator("#model")).to_contain_text("mini-v41")
    context.close()


def test_measurements_that_are_missing_leave_a_dash(browser, mock):
    mock.missing = ("vllm:spec_decode_num_drafts_total", "onelane_steps_total", "vllm:kv_cache_usage_perc")
    visit = Visit(browser, mock.url)
    expect(visit.page.locator("#figure-rate")).to_contain_text(re.compile(r"^\d+\.\d$"))
    for name in ("accept", "step", "kv"):
        expect(visit.page.locator(f"#figure-{name}")).to_have_text("–")
    visit.check()
    visit.context.close()


def test_works_by_keyboard_alone(visit):
    page = visit.page
    keys = page.keyboard
    keys.type("first line")
    keys.press("Shift+Enter")
    keys.type("second line")
    expect(page.locator("#prompt")).to_have_value("first line\nsecond line")
    keys.press("Enter")
    expect(page.locator("article.user")).to_have_text("first line\nsecond line", use_inner_text=True)
    answer = visit.answer()
    expect(page.locator("#announce")).to_have_text("Answer complete")
    # From the message field onwards, and once around.
    walked = []
    for _ in range(30):
        keys.press("Tab")
        seen = page.evaluate(
            """() => { const e = document.activeElement;
                 return [e.id || e.tagName, e === document.body || getComputedStyle(e).outlineStyle !== 'none']; }"""
        )
        assert seen[1], f"no visible focus on {seen[0]}"
        walked.append(seen[0])
        if seen[0] == "prompt":
            break
    order = ["send", "again", "clear", "temperature", "top-p", "max-tokens", "seed", "thinking", "effort", "system",
             "tools", "toggle", "log", "SUMMARY", "PRE", "prompt"]
    assert [name for name in walked if name != "BODY"] == order
    answer.locator("summary").focus()
    keys.press("Enter")
    expect(answer.locator(".thinking .body")).to_be_visible()
    page.locator("#toggle").focus()
    keys.press("Space")
    expect(page.locator("#panel")).to_be_hidden()
    assert page.locator("#toggle").get_attribute("aria-expanded") == "false"
    visit.check()


def test_events_may_be_cut_anywhere(visit):
    """The parser of the stream, every cut of a text with all three line ends."""
    wrong = visit.page.evaluate(
        r"""async () => {
          const { EventParser } = await import("/ui/stream.js");
          const text = ': hello\r\n\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:two\ndata: lines\n\ndata: [DONE]\r\r\n';
          const want = JSON.stringify(['{"a": 1}', "two\nlines", "[DONE]"]);
          const wrong = [];
          for (let i = 0; i <= text.length; ++i) {
            for (let j = i; j <= text.length; ++j) {
              const parser = new EventParser();
              const got = [text.slice(0, i), text.slice(i, j), text.slice(j)].flatMap((part) => parser.push(part));
              if (JSON.stringify(got) !== want) wrong.push([i, j, got]);
            }
          }
          return wrong;
        }"""
    )
    assert wrong == []


def test_fences_may_be_cut_anywhere(visit):
    wrong = visit.page.evaluate(
        r"""async () => {
          const { AnswerView } = await import("/ui/view.js");
          const text = "a `b` ~5\n```js x\nlet a = `1`;\n\n~~~\n```\nend\n~~~~\n```\n~~~\n~~~~\n`` x";
          const shape = (parts) => {
            const view = new AnswerView(document.createElement("div"));
            for (const part of parts) view.say(part);
            view.finish("");
            return JSON.stringify([...view.root.firstChild.children].map((e) => [e.tagName, e.textContent]));
          };
          const want = JSON.stringify([["DIV", "a `b` ~5"], ["PRE", "let a = `1`;\n\n~~~"], ["DIV", "end"],
                                       ["PRE", "```\n~~~"], ["DIV", "`` x"]]);
          const wrong = [];
          for (let i = 0; i <= text.length; ++i) {
            for (let j = i; j <= text.length; ++j) {
              const got = shape([text.slice(0, i), text.slice(i, j), text.slice(j)]);
              if (got !== want) wrong.push([i, j, got]);
            }
          }
          return wrong.slice(0, 3);
        }"""
    )
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width, height", [(1280, 860), (390, 844)])
def test_screenshots(browser, mock, scheme, width, height):
    OUTPUT.mkdir(parents=True, exist_ok=True)
    visit = Visit(browser, mock.url, WATCH + HURRY, viewport={"width": width, "height": height}, color_scheme=scheme)
    page = visit.page
    visit.say("plain: how do I read a file line by line?")
    visit.answer()
    visit.say("tools: and what is the weather in Oslo and Lima?")
    visit.answer()
    visit.wait_for("performance.now() > 140 * 1000")
    expect(page.locator("details.call textarea").last).to_be_in_viewport()
    name = f"page-{scheme}-{'wide' if width > 900 else 'narrow'}"
    page.screenshot(path=OUTPUT / f"{name}.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "scrolls sideways"
    if width < 900:
        page.locator("#toggle").click()
        page.wait_for_timeout(200)
        page.screenshot(path=OUTPUT / f"{name}-panel.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "scrolls sideways"
    visit.check()
    visit.context.close()


@pytest.fixture
def real(browser, server):
    """The page as the binary serves it, with the mini model behind it."""
    made = Visit(browser, f"http://{server.host}:{server.port}", viewport={"width": 1280, "height": 860})
    yield made
    made.context.close()


def test_chat_with_the_real_server(real):
    page = real.page
    page.locator("#temperature").fill("0")
    page.locator("#max-tokens").fill("200")
    real.say("What is 123 + 456?")
    answer = real.answer()
    assert answer.get_by_role("alert").count() == 0
    expect(answer.locator("details.thinking summary")).to_contain_text("Thought for")
    expect(answer.locator(":scope > .body")).to_contain_text("579")
    expect(answer.locator("footer")).to_contain_text(re.compile(r"^\d+ tokens .* prompt tokens"))
    said = answer.inner_text()

    # The same again: greedy answers are equal, and the prompt comes from the cache or not, unseen.
    page.locator("#again").click()
    assert real.answer().inner_text().split("tokens")[0].split("\n")[1:] == said.split("tokens")[0].split("\n")[1:]
    real.say("And 500 + 81?")
    real.answer()
    for name in ("rate", "accept", "step", "hits", "kv"):
        expect(page.locator(f"#figure-{name}")).to_contain_text(re.compile(r"\d"))
    expect(page.locator("#status")).to_have_text("idle")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=OUTPUT / "page-real.png")
    real.check()


def test_the_page_is_open_and_nothing_lies_beside_it(start_server):
    keyed_server = start_server("--api-key", "secret")

    def ask(path, **headers):
        connection = http.client.HTTPConnection(keyed_server.host, keyed_server.port, timeout=30)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()

    for path, file in {"/": "ui/index.html", "/ui/main.js": "ui/main.js"}.items():
        status, headers, body = ask(path)
        assert (status, body) == (200, (page_mock.ROOT / file).read_bytes())
        assert headers["content-security-policy"] == page_mock.policy()
        assert ask(path, **{"if-none-match": headers["etag"]})[::2] == (304, b"")
    outside = ["/ui/../etc/passwd", "/ui/%2e%2e/%2e%2e/etc/passwd", "/ui/..%2fmain.js", "/ui/main.js%00", "/ui/x"]
    for path in outside:
        assert ask(path)[0] in (400, 404), path


def test_tools_with_the_real_server(real):
    page = real.page
    page.locator("#temperature").fill("0")
    page.locator("#system").fill("You are a helpful assistant.")
    page.locator("#tools").fill(
        """[{"type": "function", "function": {"name": "start_price", "description": "Start the price.",
             "parameters": {"type": "object", "required": ["volume", "hour"],
                            "properties": {"volume": {"type": "integer"}, "hour": {"type": "integer"}}}}}]"""
    )
    real.say("I want to start a price with volume 61 and hour 8.")
    answer = real.answer()
    assert answer.locator("details.call summary").all_inner_texts() == ["Call start_price"]
    laid_out = '{\n  "volume": 61,\n  "hour": 8\n}'
    expect(answer.locator("details.call pre")).to_have_text(laid_out, use_inner_text=True)
    answer.locator("textarea").fill('{"status": "ok", "id": 3388}')
    page.locator("#send").click()
    expect(real.answer().locator(":scope > .body")).to_contain_text("3388")
    real.check()


def test_stop_with_the_real_server(real, server):
    """At this temperature most seeds make the mini model ramble to the end of its context."""
    page = real.page
    page.locator("#temperature").fill("2")
    page.locator("#thinking").uncheck()
    for seed in range(1, 9):
        page.locator("#seed").fill(str(seed))
        real.say("Hello")
        expect(page.locator("article.answer").last).to_contain_text(re.compile(r"\S+ \S+"))
        page.keyboard.press("Escape")
        if "stopped" in real.answer().locator("footer").inner_text():
            break
        page.locator("#clear").click()
    else:
        raise AssertionError("every answer was over before it could be stopped")
    server.wait_idle()
    assert page.get_by_role("alert").count() == 0
    real.check()
