"""Chat turns on simple templated knowledge: facts, rewriting, lists, counting, small code questions, small talk."""

from __future__ import annotations

import random

import words as w

SYSTEMS = ("You are a helpful assistant.", "You are a helpful assistant. Answer in one sentence.", "You are a friendly assistant.",
           "Answer the question.", "You are a small language model that answers short questions.", "Be brief.")
IDENTITY = "I am a very small language model made to test a serving engine."

SMALL_TALK = (("Hello!", "Hello! How can I help you?"), ("Hi", "Hi! What can I do for you?"), ("Hi there!", "Hi! What can I do for you?"),
              ("Good morning!", "Good morning! How can I help you?"), ("Good evening.", "Good evening! How can I help you?"),
              ("How are you?", "I am fine, thank you. How can I help you?"), ("Thank you!", "You are welcome!"),
              ("Thanks a lot.", "You are welcome!"), ("Who are you?", IDENTITY), ("What are you?", IDENTITY),
              ("What is your name?", IDENTITY), ("Are you a person?", "No. " + IDENTITY), ("Goodbye!", "Goodbye! Have a nice day."),
              ("See you later.", "Goodbye! Have a nice day."),
              ("What can you do?", "I can answer simple questions, add numbers, call tools and remember codes."),
              ("Tell me a joke.", "Why was the computer cold? It left its windows open."))

SNIPPETS = {
    "adds two numbers": ("Python", "def add(a, b):\n    return a + b"),
    "multiplies two numbers": ("Python", "def multiply(a, b):\n    return a * b"),
    "subtracts two numbers": ("Python", "def subtract(a, b):\n    return a - b"),
    "returns the larger of two numbers": ("Python", "def larger(a, b):\n    return a if a > b else b"),
    "returns the sum of a list": ("Python", "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result"),
    "reverses a string": ("Python", "def reverse(text):\n    return text[::-1]"),
    "counts the words of a text": ("Python", "def count_words(text):\n    return len(text.split())"),
    "checks whether a number is even": ("Python", "def is_even(n):\n    return n % 2 == 0"),
    "computes the factorial of n": ("Python", "def factorial(n):\n    if n < 2:\n        return 1\n    return n * factorial(n - 1)"),
    "computes the n-th Fibonacci number": ("Python", "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"),
    "prints a greeting": ("Python", 'def greet(name):\n    print("Hello, " + name + "!")'),
    "adds two integers": ("Go", "func add(a int, b int) int {\n\treturn a + b\n}"),
    "returns the length of a slice": ("Go", "func length(items []int) int {\n\treturn len(items)\n}"),
    "returns the square of a number": ("C++", "int square(int n) {\n    return n * n;\n}"),
    "returns the absolute value": ("C++", "int absolute(int n) {\n    return n < 0 ? -n : n;\n}"),
    "doubles a number": ("JavaScript", "function double(n) {\n    return 2 * n;\n}"),
}
SHELL = {"list the files of a directory": "ls -l {p}", "count the lines of a file": "wc -l {p}", "delete a file": "rm {p}",
         "show the first lines of a file": "head {p}", "show the last lines of a file": "tail {p}", "copy a file": "cp {p} {q}",
         "rename a file": "mv {p} {q}", "search for a word in a file": "grep {r} {p}", "make a directory": "mkdir {p}",
         "show the size of a directory": "du -sh {p}", "make a script executable": "chmod +x {p}", "pack a directory": "tar -czf {q}.tar.gz {p}"}


def _pick(rng: random.Random, mapping: dict):
    return rng.choice(list(mapping.items()))


def _phrase(rng: random.Random) -> str:
    pool = (w.VALUE_WORDS, [n.lower() for n in w.NOUNS], [a.lower() for a in w.ADJECTIVES])
    return " ".join(rng.choice(rng.choice(pool)) for _ in range(rng.randint(2, 5)))


def _fact(rng: random.Random):
    kind = rng.randrange(8)
    if kind == 0:
        a, b = _pick(rng, w.CAPITALS)
        return (rng.choice((f"What is the capital of {a}?", f"Name the capital of {a}.", f"Which city is the capital of {a}?")),
                f"The user asks about the capital of {a}. It is {b}.", f"The capital of {a} is {b}.")
    if kind == 1:
        a, b = _pick(rng, w.CAPITALS)
        return (rng.choice((f"{b} is the capital of which country?", f"In which country is {b} the capital?")),
                f"{b} is the capital of {a}.", f"{b} is the capital of {a}.")
    if kind == 2:
        a, b = _pick(rng, w.OPPOSITES)
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        return (rng.choice((f"What is the opposite of {a}?", f"Give the opposite of \"{a}\".")), f"The opposite of {a} is {b}.",
                f"The opposite of {a} is {b}.")
    if kind == 3:
        a, b = _pick(rng, w.PLURALS)
        return (rng.choice((f"What is the plural of {a}?", f"Give the plural of \"{a}\".")), f"One {a}, two {b}.", f"The plural of {a} is {b}.")
    if kind == 4:
        a, b = _pick(rng, w.COLOURS_OF)
        return (rng.choice((f"What colour is {a}?", f"Which colour does {a} have?")), f"The colour of {a} is {b}.", f"The colour of {a} is {b}.")
    if kind == 5:
        a, b = _pick(rng, w.SOUNDS)
        return (f"What sound does a {a} make?", f"A {a} {b}.", f"A {a} {b}.")
    if kind == 6:
        a, b = _pick(rng, w.ANIMAL_CLASS)
        return (rng.choice((f"Is a {a} a {b}?", f"What kind of animal is a {a}?")), f"A {a} is a kind of {b}.", f"A {a} is a kind of {b}.")
    language, table = _pick(rng, w.TRANSLATIONS)
    a, b = _pick(rng, table)
    return (rng.choice((f"What is \"{a}\" in {language}?", f"Translate \"{a}\" into {language}.")), f"{a} in {language} is {b}.",
            f"\"{a}\" in {language} is \"{b}\".")


def _rewrite(rng: random.Random):
    p = _phrase(rng)
    kind = rng.randrange(6)
    if kind == 0:
        return (rng.choice((f"Repeat: {p}", f"Repeat after me: {p}", f"Say \"{p}\".")), "I repeat the text.", p)
    if kind == 1:
        return (f"Write in capital letters: {p}", "I write every letter as a capital.", p.upper())
    if kind == 2:
        return (rng.choice((f"Reverse the order of the words: {p}", f"Write the words backwards: {p}")), "I start with the last word.",
                " ".join(reversed(p.split())))
    if kind == 3:
        return (f"Put a comma between the words: {p}", "I put a comma after every word.", ", ".join(p.split()))
    if kind == 4:
        return (f"How many words are in \"{p}\"?", "I count: " + ", ".join(f"{i + 1} {x}" for i, x in enumerate(p.split())) + ".",
                f"There are {w.NUMBER_WORDS[len(p.split())]} words.")
    first = rng.random() < 0.5
    return (f"What is the {'first' if first else 'last'} word of \"{p}\"?", "I look at the text.",
            f"The {'first' if first else 'last'} word is \"{p.split()[0 if first else -1]}\".")


def _list(rng: random.Random):
    kind = rng.randrange(5)
    if kind == 0:
        name, items = _pick(rng, w.CATEGORIES)
        n = rng.randint(2, 5)
        bullet = rng.random() < 0.5
        body = "\n".join(f"- {x}" for x in items[:n]) if bullet else ", ".join(items[:n])
        ask = f"List {w.NUMBER_WORDS[n]} {name}." if bullet else f"Name {w.NUMBER_WORDS[n]} {name}."
        return ask, f"I need {w.NUMBER_WORDS[n]} {name}.", body
    if kind == 1:
        a = rng.randrange(0, 20)
        b = a + rng.randint(2, 9)
        return (f"Count from {a} to {b}.", f"I start at {a} and stop at {b}.", ", ".join(map(str, range(a, b + 1))))
    if kind == 2:
        names, label = (w.DAYS, "day") if rng.random() < 0.5 else (w.MONTHS, "month")
        i = rng.randrange(len(names))
        step = rng.choice((1, -1))
        return (f"Which {label} comes {'after' if step == 1 else 'before'} {names[i]}?", f"The {label}s go in order.",
                f"{names[(i + step) % len(names)]} comes {'after' if step == 1 else 'before'} {names[i]}.")
    if kind == 3:
        items = rng.sample(w.VALUE_WORDS, rng.randint(3, 4))
        return (f"Sort these words: {', '.join(items)}", "I sort the words by their first letters.", ", ".join(sorted(items)))
    a, b = rng.sample(range(1, 1000), 2)
    return (f"Which number is larger, {a} or {b}?", f"I compare {a} and {b}.", f"{max(a, b)} is larger.")


def _code(rng: random.Random):
    if rng.random() < 0.55:
        what, (language, body) = _pick(rng, SNIPPETS)
        return (rng.choice((f"Write a {language} function that {what}.", f"Show me a {language} function that {what}.",
                            f"How do I write a function that {what} in {language}?")),
                f"A short {language} function is enough.", f"```{language.lower()}\n{body}\n```")
    what, command = _pick(rng, SHELL)
    p, q, r = rng.sample(w.VALUE_WORDS, 3)
    command = command.format(p=p, q=q, r=r)
    names = f" The names are {p} and {q}." if q in command else f" The word is {r} and the name is {p}." if f"{r} " in command else f" The name is {p}."
    return (rng.choice((f"How do I {what}?", f"Which command do I use to {what}?")) + names, "A shell command does this.",
            f"Use `{command}`.")


def turn(rng: random.Random) -> tuple[str, str, str]:
    """One exchange: question, reasoning, answer."""
    make = rng.choices((_fact, _rewrite, _list, _code, None), (5, 4, 3, 2, 2))[0]
    if make is None:
        question, answer = rng.choice(SMALL_TALK)
        return question, "This is small talk. I answer politely.", answer
    return make(rng)


def conversation(rng: random.Random) -> tuple[list[dict], bool]:
    """Messages of one to four turns and whether they are in thinking mode."""
    thinking = rng.random() < 0.5
    messages: list[dict] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for _ in range(rng.choices((1, 2, 3, 4), (4, 3, 2, 1))[0]):
        question, reasoning, answer = turn(rng)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "reasoning_content": reasoning, "content": answer})
    return messages, thinking
