"""Receipts, comparisons and cards from the command line, and the report in a browser."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("ONELANE_BIN", ROOT / "build" / "release" / "src" / "cli" / "onelane"))
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
HOSTILE = "<img src=x onerror=alert(1)> & \"quotes\""

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="build the onelane binary first")


def onelane(*arguments, code=0, **options):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


# An arm as a script: "after" is 3 % faster, and everything is a little faster each time (drift).
ARM = """
import json, math, sys
arm, order, path, template = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
receipt = json.load(open(template))
receipt["run_id"], receipt["build"]["id"] = f"{arm}-{order}", arm
receipt["arm"] = {"role": "NONE", "name": arm, "block": None, "order": order, "boot_id": f"boot {order}"}
for cell in receipt["cells"]:
    cell["tokens"] = round(6000 * cell["concurrency"] * (1.03 if arm == "after" else 1) * math.exp(0.001 * order))
    cell["last_token_s"], cell["tok_s"] = 30.0, cell["tokens"] / 30.0
json.dump(receipt, open(path + ".raw", "w"))
"""


def blank_receipt():
    """What a script writes: no more than it knows."""
    def cell(name, streams):
        return {"id": f"{name}/C{streams}/ctx0", "workload": name, "concurrency": streams, "window_s": 30.0,
                "token_source": "usage", "ttft_ms": {"p50": 12.0}, "itl_ms": {"p50": 5.0},
                "requests": 9, "errors": 0, "loops": 0, "flags": [], "measures": {"jain": 0.99},
                "samples": {"gap_ms": [31.5, 29.0]}}

    return {"schema": "lane-receipt/1", "run_id": "", "kind": "bench", "title": "a scripted arm", "command": "arm.py",
            "verdict": "PASS", "reasons": [], "protocol": {"file": "script/1", "mode": "strict"},
            "arm": {"role": "NONE", "name": ""}, "build": {"id": "", "engine": "script"}, "model": {"name": "none"},
            "resolved": {"sampling": {}, "settings": {"note": HOSTILE}}, "machine": {},
            "environment": {"throttle": [], "foreign_processes": [], "xid": []},
            "cells": [cell("prose", 1), cell("prose", 4), cell("code", 1)], "gates": [], "void": [], "artifacts": []}


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arms")
    (folder / "arm.py").write_text(ARM)
    (folder / "template.json").write_text(json.dumps(blank_receipt()))

    def command(name):
        make = f"python3 {folder}/arm.py {name} {{order}} {{receipt}} {folder}/template.json"
        return f"{make} && '{BINARY}' receipts seal {{receipt}}.raw > {{receipt}} && rm {{receipt}}.raw"

    return command


@pytest.fixture(scope="module")
def campaign(arms, tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    planned = onelane("ab", "plan", folder / "plan.json", "--control", arms("before"), "--candidate", arms("after"),
                      "--sd", "0.5", "--title", "after against before")
    assert re.search(r"16 blocks:( (CTL|CAND)){16}\n", planned)
    assert "power at a true +1.50 %: 97 % with 4 quads" in planned
    shown = onelane("ab", "run", folder / "plan.json", "--folder", folder / "run", "--db", folder / "receipts.db")
    assert "| ab/promotion | PASS | 4 sound quads of 4, 3 cells |" in shown
    return folder


def test_drift_cancels_from_the_command_line(campaign):
    receipt = json.loads((campaign / "run" / "ab.json").read_text())
    effects = {c["id"]: c["measures"]["effect_percent"] for c in receipt["cells"] if c["id"] != "blocks"}
    assert set(effects) == {"all", "class prose", "class code", "prose/C1/ctx0", "prose/C4/ctx0", "code/C1/ctx0"}
    assert all(abs(effect - 3) < 0.02 for effect in effects.values())  # tokens are whole
    assert 1.4 < receipt["gates"][0]["observed"]["drift_percent"] < 1.6


def test_plans_are_refused_with_the_flag_or_field(tmp_path):
    def refused(*more):
        return onelane("ab", "plan", tmp_path / "p.json", "--control", "a {receipt}", "--candidate", "b {receipt}", *more, code=1)

    assert "--registered-accept prose: must be a cell and a number" in refused("--registered-accept", "prose")
    assert "--registered-accept x=1y: must" in refused("--registered-accept", "x=1y")
    assert "quads: must be 4 to" in refused("--quads", "3")
    assert "inert_cells: a micro comparison needs" in refused("--question", "micro")
    assert "plan.json" in refused("--null", tmp_path)
    assert not (tmp_path / "p.json").exists()
    onelane("ab", "plan", tmp_path / "p.json", "--control", "a {receipt}", "--candidate", "b {receipt}", "--registered-accept",
            "prose/C1/ctx0=2.69")
    assert json.loads((tmp_path / "p.json").read_text())["registered_accept"] == {"prose/C1/ctx0": 2.69}


def test_receipts_are_kept_and_verified(campaign):
    store = campaign / "receipts.db"
    assert len(onelane("receipts", "list", "--db", store).splitlines()) == 17
    assert onelane("receipts", "verify", "--db", store) == "17 receipts, 0 problems\n"
    assert "0 problems" in onelane("receipts", "verify", campaign / "run" / "ab.json")
    candidate = json.loads(next((campaign / "run").glob("block-*-CAND.json")).read_text())["run_id"]
    assert "| build | script after |" in onelane("receipts", "show", candidate, "--db", store)
    assert "begins more than one" in onelane("receipts", "show", "after-", "--db", store, code=1)
    one = json.loads(onelane("receipts", "show", "--json", campaign / "run" / "ab.json"))
    assert one["kind"] == "ab"

    edited = campaign / "edited.json"
    edited.write_text((campaign / "run" / "ab.json").read_text().replace("after against", "after versus"))
    assert "digest: does not fit" in onelane("receipts", "verify", edited, code=1)
    assert "edited.json: digest" in onelane("receipts", "add", edited, "--db", store, code=1)
    assert "no such receipt store" in onelane("receipts", "list", "--db", campaign / "none.db", code=1)


def test_a_comparison_is_computed_again(campaign):
    again = onelane("ab", "report", campaign / "run")
    assert "| ab/promotion | PASS |" in again
    copy = campaign / "copy"
    shutil.copytree(campaign / "run", copy)
    block = next(copy.glob("block-03-*.json"))
    block.write_text(block.read_text().replace('"tokens": 6', '"tokens": 7', 1))
    assert "digest: does not fit" in onelane("ab", "report", copy, code=1)


def test_a_card_closes_itself(arms, tmp_path):
    card, ledger = tmp_path / "faster.toml", tmp_path / "ledger.md"
    ledger.write_text((ROOT / "docs" / "ledger.md").read_text())
    onelane("card", "new", card, "--title", "a faster way")
    assert "hypothesis: is empty" in onelane("card", "run", card, "--folder", tmp_path / "run", code=1, cwd=ROOT)
    text = card.read_text().replace('question = "promotion"', 'question = "broken"').replace("quads = 4\n", "")
    text = text.replace('hypothesis = ""', 'hypothesis = "fewer steps"').replace('prediction = ""', 'prediction = "3 %"')
    text = text.replace("#[predicted]\n#low_percent = 1.5\n#high_percent = 4.0", "[predicted]\nlow_percent = 1.5\nhigh_percent = 4.0")
    for arm in ("before", "after"):
        text = text.replace('command = ""', f"command = '''{arms(arm)}'''", 1)
    card.write_text(text)
    said = onelane("card", "run", card, "--folder", tmp_path / "run", "--ledger", ledger)
    assert "PASS: +3.00 %" in said
    assert card.read_text().startswith(text)
    row = next(line for line in ledger.read_text().splitlines() if "| a faster way |" in line)
    assert "predicted were +1.5 to +4 %, which held" in row and "onelane card run" in row
    assert ledger.read_text().replace(row + "\n", "") == (ROOT / "docs" / "ledger.md").read_text()
    assert "every file of its run hold" in onelane("card", "show", card, "--folder", tmp_path / "run")
    assert "was closed on" in onelane("card", "run", card, "--folder", tmp_path / "more", "--ledger", ledger, code=1)


def luminance(colour):
    parts = [int(p) / 255 for p in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# Colour of text (or fill of a shape) and of what lies behind it.
COLOURS = """
() => {
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (colour != "rgba(0, 0, 0, 0)") return colour;
    }
  };
  const words = [...document.querySelectorAll("h1, h2, p, li, th, td, caption, summary, figcaption, .badge")];
  const drawn = [...document.querySelectorAll("svg text, svg rect, svg circle")];
  return words.map((e) => [4.5, e.tagName, getComputedStyle(e).color, back(e)]).concat(
    drawn.map((e) => [e.tagName == "text" ? 4.5 : 3, e.tagName, getComputedStyle(e).fill, back(e)]));
}
"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not pathlib.Path(CHROMIUM).exists():
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(campaign):
    file = campaign / "report.html"
    onelane("receipts", "report", "--db", campaign / "receipts.db", "--html", file, "--title", f"All of {HOSTILE}")
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_in_a_browser(browser, page_file, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800})
    page = context.new_page()
    noise, asked = [], []
    page.on("console", lambda m: noise.append(m.text))
    page.on("pageerror", lambda e: noise.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))
    page.goto(page_file.as_uri())

    assert page.title() == f"All of {HOSTILE}"
    assert page.locator("h2").count() == 17
    assert page.locator("svg").count() >= 18  # bars of every block, the forest and the blocks in time
    assert page.locator("img, script, iframe, link[rel=stylesheet]").count() == 0
    assert page.locator(".badge.pass").first.inner_text() == "PASS"
    assert page.get_by_text("Candidate against control").count() > 0
    # Nothing is wider than a telephone; tables scroll in themselves.
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # Text is inside its drawing.
    assert page.evaluate("""() => [...document.querySelectorAll("svg")].flatMap((svg) => {
      const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll("text")].map((t) => t.getBoundingClientRect())
        .filter((t) => t.left < box.left - 1 || t.right > box.right + 1 || t.bottom > box.bottom + 1).map((t) => t.left);
    })""") == []

    seen = page.evaluate(COLOURS)
    assert len(seen) > 500
    for least, tag, ink, back in {tuple(entry) for entry in seen}:
        assert contrast(ink, back) >= least, (tag, ink, back)
    dark = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.2
    assert dark == (scheme == "dark")
    assert noise == []
    assert asked == [page_file.as_uri()]


def test_the_page_forbids_what_is_planted(browser, page_file, tmp_path):
    """Planted: a script and a picture from elsewhere are refused by the page's own policy."""
    planted = tmp_path / "planted.html"
    planted.write_text(page_file.read_text().replace(
        "</body>", "<script>document.title = 'taken over'</script><img src='https://example.com/x.png'></body>"))
    page = browser.new_page()
    noise = []
    page.on("console", lambda m: noise.append(m.text))
    page.goto(planted.as_uri())
    assert page.title() != "taken over"
    assert len([n for n in noise if "Content Security Policy" in n]) == 2
