"""Writes the frozen workload classes: src/lane/workloads/*.json, and the hashes of their files in protocol.json.

    python tools/workloads/build.py            write
    python tools/workloads/build.py --check    compare with what is there; 1 and the name of the first file that differs

The files are what counts, this is how they were made. A change of any prompt makes earlier receipts incomparable: then
give the protocol a new name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib

from code_classes import code, shell
from data_classes import structured, tool_json
from text_classes import chat_multi, long, multilingual, prose, reasoning

PROTOCOL = "onelane-workloads/1"
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "src" / "lane" / "workloads"
DEV, HELD_OUT = 16, 8

# Name: (maker, share of the traffic that the class stands for, thinking, longest answer in tokens, what it is)
CLASSES = {
    "tool_json": (tool_json, 0.20, False, 400, "one to three tool calls, half of them with nested objects and enums"),
    "shell": (shell, 0.15, False, 160, "one bash pipeline over files that are described"),
    "code": (code, 0.20, False, 384, "finish or repair a function, edit JSON and CMake"),
    "structured": (structured, 0.10, False, 320, "JSON, CSV, Markdown tables and flat YAML from sentences"),
    "prose": (prose, 0.10, False, 512, "explanations for somebody, in so many paragraphs"),
    "chat_multi": (chat_multi, 0.10, False, 200, "conversations of four to eight turns that recall what was said"),
    "reasoning": (reasoning, 0.05, True, 1024, "arithmetic, dates and small logic, with reasoning"),
    "long": (long, 0.05, False, 300, "128, 256 and 512 thousand characters of hay with codes in it"),
    "multilingual": (multilingual, 0.05, False, 256, "German, French, Spanish, Japanese and Chinese notices")}


def class_text(name: str) -> str:
    make, share, thinking, max_tokens, about = CLASSES[name]
    prompts = []
    for index in range(DEV + HELD_OUT):
        prompts.append({"id": f"{name}/{index + 1:02}", "held_out": index >= DEV, **make(index)})
    lines = ",\n".join("  " + json.dumps(p, ensure_ascii=False) for p in prompts)
    head = json.dumps({"class": name, "about": about, "share": share, "thinking": thinking, "max_tokens": max_tokens}, ensure_ascii=False)
    return f'{head[:-1]}, "prompts": [\n{lines}\n]}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    files = {f"{name}.json": class_text(name) for name in CLASSES}
    protocol = {"protocol": PROTOCOL, "files": {f: hashlib.sha256(t.encode()).hexdigest() for f, t in files.items()}}
    files["protocol.json"] = json.dumps(protocol, indent=1) + "\n"
    for name, text in files.items():
        path = FOLDER / name
        if not args.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path}: is not what this program writes")
            return 1
    print(f"{len(CLASSES)} classes, {sum(len(t.encode()) for t in files.values())} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
