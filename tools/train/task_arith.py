"""Worked arithmetic in thinking mode: addition, subtraction and small products, digit by digit with carries."""

from __future__ import annotations

import random

from words import NAMES

PLACES = ("ones", "tens", "hundreds", "thousands")
ADD = ("What is {a} + {b}?", "{a} + {b} = ?", "Compute {a} + {b}.", "Add {a} and {b}.", "What is the sum of {a} and {b}?",
       "How much is {a} plus {b}?", "Please calculate {a} + {b}.", "{a} plus {b}?", "Can you add {a} to {b}?")
SUB = ("What is {a} - {b}?", "{a} - {b} = ?", "Compute {a} - {b}.", "Subtract {b} from {a}.", "How much is {a} minus {b}?",
       "Please calculate {a} - {b}.")
MUL = ("What is {a} * {b}?", "{a} * {b} = ?", "Compute {a} * {b}.", "Multiply {a} by {b}.", "How much is {a} times {b}?",
       "Please calculate {a} * {b}.")
ADD_STORY = ("{n} has {a} {o} and gets {b} more. How many {o} does {n} have now?",
             "There are {a} {o} in one box and {b} {o} in another. How many {o} are there together?")
SUB_STORY = ("{n} has {a} {o} and gives away {b}. How many {o} are left?",)
OBJECTS = ("apples", "books", "coins", "stones", "cards", "stamps", "shells", "pens")


def _digits(x: int, width: int) -> list[int]:
    return [x // 10**i % 10 for i in range(width)]


def work_add(a: int, b: int) -> str:
    """Reasoning text of a + b. Both numbers are first padded to the same width and spelt digit by digit."""
    width = max(len(str(a)), len(str(b)))
    da, db = _digits(a, width), _digits(b, width)
    lines = [f"{' '.join(str(d) for d in reversed(da))} + {' '.join(str(d) for d in reversed(db))}"]
    carry, out = 0, []
    for i in range(width):
        total = da[i] + db[i] + carry
        lines.append(f"{PLACES[i]}: {da[i]} + {db[i]} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        out.append(total % 10)
        carry = total // 10
    if carry:
        out.append(carry)
    return "\n".join(lines) + f"\n{a} + {b} = {''.join(str(d) for d in reversed(out))}"


def work_sub(a: int, b: int) -> str:
    """Reasoning text of a - b for a >= b, with borrows."""
    width = len(str(a))
    da, db = _digits(a, width), _digits(b, width)
    lines = [f"{' '.join(str(d) for d in reversed(da))} - {' '.join(str(d) for d in reversed(db))}"]
    borrow, out = 0, []
    for i in range(width):
        top = da[i] + (10 if da[i] < db[i] + borrow else 0)
        digit = top - db[i] - borrow
        lines.append(f"{PLACES[i]}: {top} - {db[i]} - {borrow} = {digit}, write {digit}, borrow {int(top > da[i])}")
        borrow = int(top > da[i])
        out.append(digit)
    return "\n".join(lines) + f"\n{a} - {b} = {int(''.join(str(d) for d in reversed(out)))}"


def work_mul(a: int, b: int) -> str:
    """Reasoning text of a * b for a one-digit b."""
    da = _digits(a, len(str(a)))
    lines = [f"{' '.join(str(d) for d in reversed(da))} * {b}"]
    carry, out = 0, []
    for i, d in enumerate(da):
        total = d * b + carry
        lines.append(f"{PLACES[i]}: {d} * {b} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        out.append(total % 10)
        carry = total // 10
    if carry:
        out.append(carry)
    return "\n".join(lines) + f"\n{a} * {b} = {int(''.join(str(d) for d in reversed(out)))}"


def problem(rng: random.Random, kind: str | None = None, digits: int | None = None) -> dict:
    """One problem: `question`, `reasoning`, `answer` (sentence), `result` (int), `kind`.

    kind: add, sub or mul (drawn when None). digits: both operands get exactly that many (drawn when None).
    """
    kind = kind or rng.choices(("add", "sub", "mul"), (6, 2, 1))[0]

    def number(n: int | None) -> int:
        n = n or rng.choices((1, 2, 3), (1, 3, 8))[0]
        return rng.randrange(10 ** (n - 1) if n > 1 else 0, 10**n)

    if kind == "add":
        a, b = number(digits), number(digits)
        result, work, sign = a + b, work_add(a, b), "+"
        form = rng.choice(ADD_STORY if rng.random() < 0.15 else ADD)
    elif kind == "sub":
        a, b = number(digits), number(digits)
        a, b = max(a, b), min(a, b)
        result, work, sign = a - b, work_sub(a, b), "-"
        form = rng.choice(SUB_STORY if rng.random() < 0.15 else SUB)
    else:
        a, b = number(digits or rng.choice((1, 2, 2, 3))), rng.randrange(0, 10)
        result, work, sign = a * b, work_mul(a, b), "*"
        form = rng.choice(MUL)
    question = form.format(a=a, b=b, n=rng.choice(NAMES), o=rng.choice(OBJECTS))
    return {"kind": kind, "question": question, "reasoning": work, "answer": f"{a} {sign} {b} = {result}", "result": result}


def conversation(rng: random.Random) -> tuple[list[dict], bool]:
    """Messages of one to three problems and whether they are in thinking mode."""
    thinking = rng.random() < 0.93
    messages: list[dict] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(("You are a helpful assistant.", "You are a careful calculator.",
                                                                  "Solve the problem."))})
    for _ in range(rng.choices((1, 2, 3), (8, 1, 1))[0]):
        # Without thinking only one-digit problems are asked: the model cannot carry in its head.
        p = problem(rng) if thinking else problem(rng, kind=rng.choice(("add", "sub", "mul")), digits=1)
        messages.append({"role": "user", "content": p["question"]})
        messages.append({"role": "assistant", "reasoning_content": p["reasoning"], "content": p["answer"]})
    return messages, thinking
