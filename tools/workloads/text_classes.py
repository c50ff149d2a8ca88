"""prose, chat_multi, reasoning, multilingual and long: tasks that are made of sentences."""

from __future__ import annotations

import datetime

from words import ADJECTIVES, DAYS, NAMES, NOUNS, PLACES, PRODUCTS, assistant, rng_of, system, user

TOPICS = (
    ("why the tide comes twice a day", "a child of ten", 3), ("how a lock lifts a barge", "a tourist on the towpath", 4),
    ("what a double-entry ledger is good for", "a baker who keeps her own books", 3),
    ("how bread rises and why it stops", "a pupil in a cooking class", 3),
    ("why bridges have gaps between their parts", "a cyclist who wonders about the noise", 2),
    ("what happens inside a refrigerator", "a neighbour without physics", 4),
    ("how a checksum notices a damaged file", "a photographer with old disks", 3),
    ("why some woods float badly", "a boat builder's apprentice", 2),
    ("how a library decides which books to give away", "a worried donor", 3),
    ("what a compiler does before it writes machine code", "a student who knows Python", 5),
    ("how to read a weather map", "a hiker", 4), ("why concrete needs water to harden", "a home owner", 3),
    ("how bees tell each other where flowers are", "a gardener", 3), ("what makes a queue feel fair", "the owner of a small post office", 4),
    ("how a sewing machine makes a stitch from two threads", "somebody who has just bought one", 3),
    ("why clocks on ships mattered", "a history class", 4), ("how salt keeps food", "a camper", 2),
    ("what a cache is and when it lies", "a junior programmer", 4), ("how a river makes its bends", "a family in a canoe", 3),
    ("why an orchestra tunes to the oboe", "a first-time visitor of a concert", 2),
    ("how fog forms in a valley overnight", "a commuter", 3), ("what a mortgage costs in the end", "a couple of thirty", 4),
    ("how paper is made from old paper", "a school newspaper", 3), ("why trains cannot brake quickly", "a driver at a level crossing", 3))
MANNERS = ("Use plain words and no lists.", "Begin with something the reader can see.", "Do not use any headings.",
           "Give one number that helps, and say where it comes from in general terms.", "End with a question the reader could ask next.",
           "Write as one would speak.")


def prose(index: int) -> dict:
    topic, reader, paragraphs = TOPICS[index]
    return {"messages": [user(f"Explain {topic} to {reader}, in {paragraphs} paragraphs. {MANNERS[index % len(MANNERS)]}")],
            "oracle": {"kind": "none"}}


SMALL_TALK = (
    ("What would you take on a day's walk?", "Water, bread, a map on paper, and a dry pair of socks."),
    ("My train leaves early. How do I wake up well?", "Put the alarm out of reach, open the curtain, and drink a glass of water first."),
    ("Is it worth repairing an old bicycle?", "Mostly yes: frame and wheels last, and the parts that wear are cheap."),
    ("How long does a pot of soup keep?", "About three days in the cold, if it was cooled quickly."),
    ("Which plants survive a dark hallway?", "Ferns and a few kinds of ivy do, as long as they are not watered too much."),
    ("What makes a good label on a box?", "What is inside, the date, and the name of whoever packed it."),
    ("Should I write notes by hand?", "If you want to remember them, yes; if you want to find them, no."),
    ("How do I keep a rope from fraying?", "Whip the end with thin twine, or melt it if it is nylon."))


def chat_multi(index: int) -> dict:
    """Four to eight turns; facts come early, the last turn wants two of them back."""
    rng = rng_of("chat_multi", index)
    turns = 4 + index % 5
    name, place = rng.choice(NAMES), rng.choice(PLACES)
    locker, parcel = rng.randrange(100, 1000), rng.randrange(10000, 100000)
    facts = [(f"My name is {name} and I am travelling to {place}.", f"Thank you, {name}. I hope {place} is kind to you."),
             (f"Please remember: my locker is number {locker}.", f"Noted: locker {locker}."),
             (f"And the parcel I expect has the number {parcel}.", f"Noted: parcel {parcel}.")]
    talk = rng.sample(SMALL_TALK, turns - 3 if turns > 3 else 0)
    exchanges = facts + talk
    tail = exchanges[1:]
    rng.shuffle(tail)
    messages = [system("You are a patient assistant. You remember what you were told and answer briefly.")]
    for question, answer in [exchanges[0]] + tail[:turns - 1]:
        messages += [user(question), assistant(answer)]
    told = {str(m["content"]) for m in messages}
    wanted = [(question, value) for question, value, source in
              (("the number of my locker", str(locker), facts[1][0]), ("the number of my parcel", str(parcel), facts[2][0]),
               ("the place I am travelling to", place, facts[0][0])) if source in told]
    first, second = rng.sample(wanted, 2)
    messages.append(user(f"What was {first[0]}, and what was {second[0]}?"))
    return {"messages": messages, "oracle": {"kind": "contains", "all": [first[1], second[1]]},
            "reference": f"The answers are {first[1]} and {second[1]}."}


def reasoning(index: int) -> dict:
    rng = rng_of("reasoning", index)
    kind = index % 6
    a, b, c = rng.randrange(120, 990), rng.randrange(12, 90), rng.randrange(3, 9)
    who = rng.choice(NAMES)
    if kind == 0:
        text, value = f"{who} packs {a} {rng.choice(PRODUCTS)} into boxes of {c}. How many are left over when no more box can be filled?", a % c
    elif kind == 1:
        text, value = f"Compute {a} * {b} - {c * 100}.", a * b - c * 100
    elif kind == 2:
        start = datetime.date(2031, rng.randrange(1, 13), rng.randrange(1, 28))
        end = start + datetime.timedelta(days=a)
        text, value = f"How many days is it from {start.isoformat()} to {end.isoformat()}?", a
    elif kind == 3:
        hour, minute = rng.randrange(6, 12), rng.randrange(0, 60)
        later = hour * 60 + minute + a
        text = f"A ferry leaves at {hour:02}:{minute:02} and needs {a} minutes. How many minutes after midnight does it arrive?"
        value = later
    elif kind == 4:
        ages = rng.sample(range(20, 70), 3)
        people = rng.sample(NAMES, 3)
        text = (f"{people[0]} is {ages[0]} years old. {people[1]} is {abs(ages[1] - ages[0])} years {'older' if ages[1] > ages[0] else 'younger'} than "
                f"{people[0]}, and {people[2]} is {abs(ages[2] - ages[1])} years {'older' if ages[2] > ages[1] else 'younger'} than {people[1]}. "
                "How old are the three together?")
        value = sum(ages)
    else:
        price, count, discount = rng.randrange(4, 30), rng.randrange(10, 60), rng.randrange(2, 9) * 10
        text = f"{count} {rng.choice(PRODUCTS)} cost {price} euros each. From the total, {discount} euros are taken off, then {who} pays in {c} equal parts of whole euros; how many euros remain over?"
        value = (price * count - discount) % c
    return {"messages": [user(text + " End your answer with the number alone on the last line.")], "oracle": {"kind": "number", "value": value},
            "reference": f"The result is\n{value}"}


# One notice in five languages: who, where, when, how many. The question wants two of the facts back.
NOTICES = {
    "de": ("Das kleine Museum in {place} öffnet am {day}. März um {hour} Uhr. {name} führt durch {count} Räume mit alten Uhren. "
           "Der Eintritt kostet {price} Euro, Kinder zahlen nichts.", "Wie viele Räume werden gezeigt, und was kostet der Eintritt? Antworte auf Deutsch in zwei Sätzen.",
           "Es werden {count} Räume gezeigt. Der Eintritt kostet {price} Euro.", "latin"),
    "fr": ("Le petit musée de {place} ouvre le {day} mars à {hour} heures. {name} présente {count} salles d'horloges anciennes. "
           "L'entrée coûte {price} euros, les enfants ne paient rien.", "Combien de salles sont présentées, et combien coûte l'entrée ? Réponds en français en deux phrases.",
           "On présente {count} salles. L'entrée coûte {price} euros.", "latin"),
    "es": ("El pequeño museo de {place} abre el {day} de marzo a las {hour}. {name} muestra {count} salas con relojes antiguos. "
           "La entrada cuesta {price} euros y los niños no pagan.", "¿Cuántas salas se muestran y cuánto cuesta la entrada? Responde en español con dos frases.",
           "Se muestran {count} salas. La entrada cuesta {price} euros.", "latin"),
    "ja": ("{place}の小さな博物館は三月{day}日の{hour}時に開きます。{name}さんが古い時計のある{count}の部屋を案内します。入場料は{price}ユーロで、子どもは無料です。",
           "部屋はいくつありますか。入場料はいくらですか。日本語で二つの文で答えてください。", "部屋は{count}あります。入場料は{price}ユーロです。", "kana"),
    "zh": ("{place}的小博物馆于三月{day}日{hour}点开放。{name}带领参观者看{count}个放着古钟的房间。门票{price}欧元，儿童免费。",
           "一共有几个房间？门票多少钱？请用中文两句话回答。", "一共有{count}个房间。门票{price}欧元。", "han")}


def multilingual(index: int) -> dict:
    rng = rng_of("multilingual", index)
    text, question, answer, script = list(NOTICES.values())[index % len(NOTICES)]
    facts = {"place": rng.choice(PLACES), "name": rng.choice(NAMES), "day": rng.randrange(2, 29), "hour": rng.randrange(9, 18),
             "count": rng.randrange(11, 60), "price": rng.randrange(61, 99)}
    return {"messages": [user(text.format(**facts) + "\n\n" + question)],
            "oracle": {"kind": "contains", "all": [str(facts["count"]), str(facts["price"])], "script": script},
            "reference": answer.format(**facts)}


LONG_CHARACTERS = (128_000, 256_000, 512_000)  # about 32k, 64k and 128k tokens of a large vocabulary


def long(index: int) -> dict:
    """Hay of three sizes. The program expands {hay} from its seed; its facts stand at these thousandths of it."""
    rng = rng_of("long", index)
    kind = index % 3
    count = (2, 4, 6)[kind]
    depths = sorted(rng.sample(range(20, 981, 60), count))
    things = [f"{a} {n}" for a, n in zip(rng.sample(ADJECTIVES, count), rng.sample(NOUNS, count))]
    codes = [f"{rng.randrange(10**11, 10**12)}" for _ in range(count)]
    facts = [{"at_permille": d, "text": f"The code of the {t} is {c}."} for d, t, c in zip(depths, things, codes)]
    if kind == 0:
        ask, wanted = f"Which code does the text give for the {things[0]}? Answer with the code.", codes[:1]
    elif kind == 1:
        a, b = sorted(rng.sample(range(count), 2))
        ask = f"Summarise in three sentences what the text is about, then give the codes of the {things[a]} and of the {things[b]}."
        wanted = [codes[a], codes[b]]
    else:
        which = rng.randrange(count)
        ask = f'Copy the sentence that gives the code of the {things[which]}, but write "{rng.choice(DAYS)}" in place of "code".'
        wanted = [codes[which], things[which]]
    return {"messages": [user("{hay}\n\n" + ask)], "hay": {"seed": 1000 + index, "characters": LONG_CHARACTERS[index // 3 % 3], "facts": facts},
            "oracle": {"kind": "contains", "all": wanted}, "reference": "Found: " + ", ".join(wanted) + "."}
