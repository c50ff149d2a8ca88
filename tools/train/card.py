"""Writes a model's card: README.md and curve.svg beside its weights, from what training and evaluation measured.

    python tools/train/card.py --model models/mini-v41 --report build/train/mini-v41/train_report.json \\
        --curve build/train/mini-v41/curve.jsonl --figures figures.json

Weights that were tuned further (trainer.py --init) have a report and a curve for every run, in order.
"""

from __future__ import annotations

import argparse
import json
import pathlib

SHOWN = ("prose", "code", "json", "tool", "recall")
COLOURS = ("#4269d0", "#d1495b", "#3ca951", "#9467bd", "#ff8c00")
WIDTH, HEIGHT, LEFT, TOP = 720, 300, 46, 14


def curve_rows(paths: list[pathlib.Path], reports: list[dict]) -> list[dict]:
    """What every run logged, without the drafter's phases; tokens count on from run to run."""
    rows, before = [], 0
    for run, (path, report) in enumerate(zip(paths, reports, strict=True)):
        logged = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows += [r | {"tokens": before + r["tokens"], "phase": f"tune-{run} {r['phase']}" if run else r["phase"]}
                 for r in logged if "nats" in r and r.get("phase") != "draft"]
        before += report["tokens"]
    return rows


def svg(rows: list[dict]) -> str:
    """Training loss in nats per token by class over tokens; every point is the mean of 20 steps."""
    most_tokens = rows[-1]["tokens"]
    top = 8.0
    x = lambda tokens: LEFT + (WIDTH - LEFT - 120) * tokens / most_tokens
    y = lambda nats: TOP + (HEIGHT - TOP - 34) * (1 - min(nats, top) / top)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for nats in range(0, 9, 2):
        parts.append(f'<path d="M{LEFT} {y(nats):.1f}H{x(most_tokens):.1f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 8}" y="{y(nats) + 4:.1f}" text-anchor="end">{nats}</text>')
    for share in (0, 0.5, 1):
        parts.append(f'<text x="{x(share * most_tokens):.1f}" y="{HEIGHT - 14}" text-anchor="middle">'
                     f'{share * most_tokens / 1e6:.0f} M tokens</text>')
    for i, (name, colour) in enumerate(zip(SHOWN, COLOURS)):
        points = [(r["tokens"], r["nats"][name]) for r in rows if name in r["nats"]]
        step = max(1, len(points) // 100)
        path = "L".join(f"{x(t):.1f} {y(n):.1f}" for t, n in points[::step])
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
                     f'<text x="{WIDTH - 110}" y="{TOP + 14 + 18 * i}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def effort(report: dict) -> str:
    return f"{report['tokens'] / 1e6:.0f} M tokens, {report['steps']} steps"


def card(model: pathlib.Path, reports: list[dict], rows: list[dict], figures: dict, manifest: dict, note: str = "") -> str:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    size = (model / "model.safetensors").stat().st_size
    held, drafts = figures["held_out"], figures["drafts"]
    natural = "\n".join(f"| {n} | {held[n]['bits_per_byte']:.3f} | {drafts[n]['accepted_per_step']:.2f} |" for n in held)
    tasks = "\n".join(f"| {name} | {value} % | {count} |" for name, value, count in task_rows(figures))
    sources = sorted({s["licence"] for s in manifest["sources"]})
    report = reports[0]
    tuned = "".join(f"; then tuned for {r['seconds'] / 60:.1f} minutes ({effort(r)})" for r in reports[1:]) + (f"; {note}" if note else "")
    phases: dict[str, list[dict]] = {}
    for row in rows:
        phases.setdefault(row["phase"], []).append(row)
    curve = "\n".join(
        f"| {name} | {part[-1]['length']} | {part[-1]['tokens'] / 1e6:.0f} M | "
        + " | ".join(f"{part[-1]['nats'].get(c, float('nan')):.3f}" for c in SHOWN) + " |"
        for name, part in phases.items())
    return f"""# {model.name}

A small trained model in the real checkpoint format of DeepSeek {"V4.1" if "text_config" in config else "V4"}-Flash: tensor names, dtypes,
packing and kernel-facing constants are the full-size model's. It exists to test and demonstrate Onelane; what it says is not knowledge.

| | |
|---|---|
| size | {size:,} bytes of weights, {text['num_hidden_layers']} layers, hidden size {text['hidden_size']}, {text['num_attention_heads']} heads of {text['head_dim']}, {text['n_routed_experts']} experts (top {text['num_experts_per_tok']}), vocabulary {text['vocab_size']} |
| trained | {report['seconds'] / 60:.1f} minutes on one {report['device']}, {effort(report)}, quantisation-aware from the first step (`tools/train`){tuned} |
| licence | Apache-2.0; training text under {", ".join(sources)} |

## Data

Prose, code, shell and JSON from Debian packages under permissive licences, 5 % held out by file group, and generated rows: chat in the
real prompt encoding, DSML tool calls, worked arithmetic in thinking mode, key-value recall up to 8K tokens, repeated spans.
`models/manifest.json` lists packages, versions, licences, bytes and sha256 of the cleaned text.

## Figures

Measured with `onelane` (cpu backend, greedy) by `python tools/train/evaluate.py --binary onelane --model models/{model.name}`
on held-out text and tasks.

| text | bits per byte | drafts accepted a step, beyond the first token |
|---|---:|---:|
{natural}

| held-out task | right | of |
|---|---:|---:|
{tasks}

Recall asks for a fact in a prompt of the given length in tokens, half of the time for one in its first 5 %.

## Training curve

![nats per token by class](curve.svg)

Loss in nats per token (targets only) at the end of every phase:

| phase | length | tokens | {" | ".join(SHOWN)} |
|---|---:|---:|{"---:|" * len(SHOWN)}
{curve}

## Limits

- English, code and shell of the kinds in the manifest; no world knowledge, no instruction following beyond the trained forms.
- Chat answers follow templates. Arithmetic is addition, subtraction and small products, worked digit by digit in thinking mode.
- Recalled values of two words are sometimes mixed up with those of other facts, most often in long prompts; digits are not.
- Tool calls copy values that stand in the request; schemas are flat with up to three parameters.
- Trained on rows of at most 8,192 tokens; longer contexts run (up to {text['max_position_embeddings']}) but were never trained.
"""


def task_rows(figures: dict) -> list[tuple]:
    """(what, per cent, number of items) of every held-out task."""
    rows = []
    for length, r in figures["recall"].items():
        rows += [(f"key-value recall in {length} tokens, exact", r["exact"], r["count"]),
                 ("- of which values of five digits / two words", f"{r['digits']} / {r['words']}", r["count"])]
    tool = figures["tool"]
    rows += [("tool calls valid (parsed, right tool, fits the schema)", tool["valid"], tool["count"]),
             ("tool calls exact (all values right)", tool["exact"], tool["count"]),
             ("three-digit addition in thinking mode, exact", figures["arith"]["exact"], figures["arith"]["count"])]
    if "chat" in figures:
        rows.append(("chat answers exact", figures["chat"]["exact"], figures["chat"]["count"]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "figures"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    for name in ("report", "curve"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True, nargs="+", help="one of every run")
    parser.add_argument("--note", default="", help="what else was done to the weights, for the line about training")
    args = parser.parse_args()
    if len(args.report) != len(args.curve):
        parser.error(f"{len(args.report)} reports and {len(args.curve)} curves: every run has one of each")
    read = lambda path: json.loads(path.read_text(encoding="utf-8"))
    reports = [read(path) for path in args.report]
    rows = curve_rows(args.curve, reports)
    manifest = read(args.model.parent / "manifest.json")
    text = card(args.model, reports, rows, read(args.figures), manifest, args.note)
    (args.model / "README.md").write_text(text, encoding="utf-8")
    (args.model / "curve.svg").write_text(svg(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
