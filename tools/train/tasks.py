"""Seeded generators of the synthetic training documents and of the held-out evaluation tasks.

    python tools/train/tasks.py --task arith --generation v41 --count 3          # read a few documents

A document is a list of (text, kind) pieces; kind CONTEXT is what the model reads, TARGET what it must write.
Held-out documents come from seeds that training never uses; held-out tool conversations also use tool names that training
never shows. Recall and copy rows are composed by the loader itself (dataset.py) from the pieces of task_recall.py.
"""

from __future__ import annotations

import argparse
import random

import chat_format
import task_arith
import task_chat
import task_tools

CONTEXT, TARGET = 0, 1
TASKS = ("chat", "tool", "arith")


def conversation(task: str, rng: random.Random, held: bool = False) -> tuple[list[dict], bool]:
    """Messages of one conversation of a task and whether it is in thinking mode."""
    if task == "chat":
        return task_chat.conversation(rng)
    if task == "tool":
        return task_tools.conversation(rng, held=held)
    if task == "arith":
        return task_arith.conversation(rng)
    raise ValueError(f"task {task!r}: expected one of {TASKS}")


def effort(rng: random.Random) -> int:
    """Reasoning effort of a V4.1 document: mostly the named levels, sometimes any value."""
    return rng.choices((75, 50, 100, rng.randint(1, 100)), (6, 1, 1, 2))[0]


def document(task: str, generation: str, rng: random.Random, held: bool = False) -> list[tuple[str, int]]:
    """One training document, from BOS to EOS."""
    messages, thinking = conversation(task, rng, held)
    # Worked solutions are either all shown and all learnt, or shown as serving shows them: without the reasoning of
    # earlier turns. Then those bare answers must not be learnt, or the model would answer without thinking.
    drop = task != "arith" or rng.random() < 0.5
    pieces = chat_format.segments(messages, generation, thinking, effort=effort(rng), drop_thinking=drop)
    last = max(i for i, (_, written) in enumerate(pieces) if written)
    bare = task == "arith" and thinking and drop
    return [(text, TARGET if written and (i == last or not bare) else CONTEXT) for i, (text, written) in enumerate(pieces)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="chat")
    parser.add_argument("--generation", choices=chat_format.GENERATIONS, default="v41")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seed", default="look")
    args = parser.parse_args()
    for i in range(args.count):
        for text, kind in document(args.task, args.generation, random.Random(f"{args.seed}:{i}")):
            print(f"\033[1m{text}\033[0m" if kind == TARGET else text, end="")
        print("\n" + "-" * 80)


if __name__ == "__main__":
    main()
