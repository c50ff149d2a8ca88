"""Word lists of the workload classes, and what all of them need. Changing a list changes frozen prompts: do not."""

from __future__ import annotations

import random

NAMES = "Amira Bruno Chiara Dmitri Elena Farid Gwen Hideo Ingrid Jonas Katja Lucía Mateo Noor Olga Priya Quentin Rafael Sofia Tariq".split()
PLACES = "Arvika Bergen Cusco Dakar Evora Faro Graz Hobart Izmir Jena Kazan Leiden Mostar Nantes Odense Porto Quito Riga Split Turku".split()
PRODUCTS = "bolts brackets bulbs cables clamps filters gaskets hinges nozzles pumps relays sensors switches valves washers".split()
ADJECTIVES = "amber brisk copper dusty early faint grey hollow ivory late mossy narrow olive plain quiet rough silver tall".split()
NOUNS = "anchor barn canal depot engine ferry gate harbour inlet jetty kiln ledger mill north-pier orchard quarry station tower".split()
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def rng_of(*what) -> random.Random:
    """A generator of its own for every prompt: inserting one leaves the others as they are."""
    return random.Random("onelane workloads 1/" + "/".join(map(str, what)))


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def system(text: str) -> dict:
    return {"role": "system", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}
