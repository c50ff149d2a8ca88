"""Runs the compiled onelane on the held-out tasks and writes the figures of a model card as JSON.

    python tools/train/evaluate.py --binary build/release/onelane --model models/mini-v41 --out figures.json

Needs the cleaned corpus (`corpus.py`) for the held-out text. `--ids FILE` instead grades completions made elsewhere: one
JSON object per line with the `id` of the task list and either `text` or the completion's token `tokens`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

import evaluation_tasks
from dataset import NATURAL

SCORE_BYTES = 6000  # one scored piece: long enough for context, short enough for a CPU
DRAFT_PROMPT_BYTES = 1500  # of a held-out document, continued greedily to measure drafts
DRAFT_TOKENS = 128


def run(arguments: list[str]) -> str:
    """Standard output of one onelane command; stops with its message when it fails."""
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"evaluate: {' '.join(arguments)} failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def generation_of(model: pathlib.Path) -> str:
    """v4 or v41, from the model type in config.json."""
    model_type = json.loads((model / "config.json").read_text())["model_type"]
    try:
        return {"deepseek_v41": "v41", "deepseek_v4": "v4"}[model_type]
    except KeyError:
        sys.exit(f"evaluate: {model / 'config.json'}: model_type {model_type!r} is neither deepseek_v4 nor deepseek_v41")


def completions(binary: str, model: pathlib.Path, items: list[dict], work: pathlib.Path) -> list[str]:
    """Greedy completions of all items, in one onelane process per task."""
    texts: dict[int, str] = {}
    for task in dict.fromkeys(i["task"] for i in items):
        mine = [i for i in items if i["task"] == task]
        prompts = work / f"{task}.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": i["prompt"], "max_tokens": i["max_tokens"]}, ensure_ascii=False) + "\n"
                                   for i in mine), encoding="utf-8")
        out = run([binary, "generate", "-m", str(model), "--jsonl", str(prompts), "--raw", "--temperature", "0", "--json"])
        lines = [json.loads(line) for line in out.splitlines() if line.strip()]
        if len(lines) != len(mine):
            sys.exit(f"evaluate: {task}: {len(mine)} prompts gave {len(lines)} output lines")
        texts |= {i["id"]: line["text"] for i, line in zip(mine, lines)}
        print(f"evaluate: {task}: {len(mine)} completions", file=sys.stderr)
    return [texts[i["id"]] for i in items]


def held_out_pieces(text_dir: pathlib.Path, name: str, count: int) -> list[str]:
    """`count` document beginnings spread evenly over the held-out split of a class, each cut at a line end."""
    with open(text_dir / f"{name}.heldout.jsonl", encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f]
    pieces = []
    for i in range(min(count, len(texts))):
        text = texts[i * len(texts) // min(count, len(texts))]
        cut = text.rfind("\n", 0, SCORE_BYTES)
        pieces.append(text if len(text) <= SCORE_BYTES else text[: cut + 1 or SCORE_BYTES])
    return pieces


def bits_per_byte(binary: str, model: pathlib.Path, text_dir: pathlib.Path, count: int, work: pathlib.Path) -> dict:
    """Held-out bits per byte of every natural class, weighted by the bytes of the pieces."""
    out = {}
    for name in NATURAL:
        bits = size = 0.0
        for text in held_out_pieces(text_dir, name, count):
            path = work / "piece.txt"
            path.write_text(text, encoding="utf-8")
            scored = json.loads(run([binary, "score", "-m", str(model), "--file", str(path), "--json"]))
            bits += scored["bits_per_byte"] * scored["bytes"]
            size += scored["bytes"]
        out[name] = {"bits_per_byte": round(bits / size, 4), "bytes": int(size)}
        print(f"evaluate: {name}: {out[name]['bits_per_byte']} bits per byte", file=sys.stderr)
    return out


def draft_acceptance(binary: str, model: pathlib.Path, text_dir: pathlib.Path, count: int, work: pathlib.Path) -> dict:
    """Drafts accepted per step beyond the first token, continuing held-out documents of every natural class greedily."""
    out = {}
    for name in NATURAL:
        prompts = work / "drafts.jsonl"
        texts = [t[:DRAFT_PROMPT_BYTES] for t in held_out_pieces(text_dir, name, count)]
        prompts.write_text("".join(json.dumps({"prompt": t, "max_tokens": DRAFT_TOKENS}) + "\n" for t in texts), encoding="utf-8")
        made = run([binary, "generate", "-m", str(model), "--jsonl", str(prompts), "--temperature", "0", "--ignore-eos", "--json"])
        drafts = [json.loads(line)["draft"] for line in made.splitlines() if line.strip()]
        blocks = sum(d["blocks"] for d in drafts)
        accepted = sum(d["mean_accepted"] * d["blocks"] for d in drafts)
        out[name] = {"accepted_per_step": round(accepted / blocks, 3), "blocks": blocks}
        print(f"evaluate: {name}: {out[name]['accepted_per_step']} drafts accepted a step", file=sys.stderr)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="the compiled onelane")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="model folder with config.json and tokenizer.json")
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path("build/train/text"))
    parser.add_argument("--generation", choices=("v4", "v41"), help="instead of reading it from config.json")
    parser.add_argument("--ids", type=pathlib.Path, help="grade these completions instead of running onelane")
    parser.add_argument("--tasks", nargs="*", default=list(evaluation_tasks.COUNTS), choices=list(evaluation_tasks.COUNTS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full item counts to run")
    parser.add_argument("--pieces", type=int, default=25, help="scored pieces per natural class, 0 for none")
    parser.add_argument("--failures", type=pathlib.Path, help="write the failed items and their completions here")
    parser.add_argument("--out", type=pathlib.Path, help="write the figures here as well")
    args = parser.parse_args()
    if not args.binary and not args.ids:
        parser.error("one of --binary and --ids is needed")
    generation = args.generation or generation_of(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    counts = {t: max(1, round(evaluation_tasks.COUNTS[t] * args.scale)) for t in args.tasks}

    figures: dict = {"model": args.model.name, "generation": generation}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if args.ids:
            # Made from the full list, so ids refer to it whatever --scale says.
            items = evaluation_tasks.task_list(generation, tokenizer, args.text)
            made = {}
            for line in args.ids.read_text(encoding="utf-8").splitlines():
                o = json.loads(line)
                made[o["id"]] = o["text"] if "text" in o else tokenizer.decode(o["tokens"], skip_special_tokens=False)
            items = [i for i in items if i["id"] in made]
            texts = [made[i["id"]] for i in items]
        else:
            items = evaluation_tasks.task_list(generation, tokenizer, args.text, counts)
            texts = completions(args.binary, args.model, items, work)
            if args.pieces:
                figures["held_out"] = bits_per_byte(args.binary, args.model, args.text, args.pieces, work)
                figures["drafts"] = draft_acceptance(args.binary, args.model, args.text, args.pieces, work)
    outcomes = [evaluation_tasks.grade(i, t, generation) for i, t in zip(items, texts)]
    figures |= evaluation_tasks.summary(items, outcomes)
    if args.failures:
        with open(args.failures, "w", encoding="utf-8") as f:
            for item, text, outcome in zip(items, texts, outcomes):
                if not all(outcome.values()):
                    f.write(json.dumps({"task": item["task"], "group": item["group"], "expect": item["expect"], "text": text,
                                        "prompt_end": item["prompt"][-400:]}, ensure_ascii=False) + "\n")
    result = json.dumps(figures, indent=1, ensure_ascii=False)
    print(result)
    if args.out:
        args.out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
