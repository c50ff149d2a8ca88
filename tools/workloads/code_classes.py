"""code and shell: answers that are run. What `shell` expects is what its reference command prints here."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile

from functions import CPP, PYTHON
from words import ADJECTIVES, NAMES, PLACES, PRODUCTS, rng_of, user

CMAKE = (("a static library `text` from a.cc and b.cc, and a program `reader` from main.cc that links it",
          "add_library(text STATIC a.cc b.cc)\nadd_executable(reader main.cc)\ntarget_link_libraries(reader PRIVATE text)",
          ["add_library(text STATIC a.cc b.cc)", "add_executable(reader main.cc)", "target_link_libraries(reader"]),
         ("a shared library `sound` from wave.cc with the public include folder `include`, and C++20 as its public feature",
          "add_library(sound SHARED wave.cc)\ntarget_include_directories(sound PUBLIC include)\ntarget_compile_features(sound PUBLIC cxx_std_20)",
          ["add_library(sound SHARED wave.cc)", "target_include_directories(sound PUBLIC include)", "target_compile_features(sound PUBLIC cxx_std_20)"]))


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _function(language: str, item: tuple, kind: str) -> dict:
    what, head, body, wrong, tests = item
    whole = f"{head}\n{body}" + ("\n}" if language == "cpp" else "")
    if kind == "finish":
        text = f"Finish this function: {what}. Answer with the whole function in one code block.\n\n{_block(language, head)}"
    else:
        broken = f"{head}\n{wrong}" + ("\n}" if language == "cpp" else "")
        text = (f"This function is wrong. It should do this: {what}. These tests fail. Answer with the whole repaired function in one code "
                f"block.\n\n{_block(language, broken)}\n\n{_block(language, tests)}")
    return {"messages": [user(text)], "oracle": {"kind": "program", "language": language, "tests": tests}, "reference": _block(language, whole)}


def _json_edit(index: int) -> dict:
    rng = rng_of("code", "json", index)
    before = {"name": rng.choice(PLACES).lower(), "limits": {"jobs": rng.randrange(2, 9), "seconds": rng.randrange(30, 90)},
              "steps": rng.sample(ADJECTIVES, 3)}
    after = json.loads(json.dumps(before))
    after["limits"]["jobs"] = 12
    after["steps"].append("publish")
    text = (f"In this file set the limit of jobs to 12 and add the step \"publish\" at the end. Answer with the whole file in one code block.\n\n"
            f"{_block('json', json.dumps(before, indent=2))}")
    return {"messages": [user(text)], "oracle": {"kind": "json", "value": after}, "reference": _block("json", json.dumps(after, indent=2))}


def code(index: int) -> dict:
    """Ten Python and ten C++ functions, half to finish and half to repair, then JSON and CMake, spread over both splits."""
    if index % 12 == 10:
        return _json_edit(index)
    if index % 12 == 11:
        what, answer, parts = CMAKE[index // 12]
        return {"messages": [user(f"Write the lines of a CMakeLists.txt that make {what}. One command a line, in this order, in one code block.")],
                "oracle": {"kind": "contains", "all": parts}, "reference": _block("cmake", answer)}
    number = index // 12 * 5 + index % 12 // 2
    language, items = (("python", PYTHON), ("cpp", CPP))[index % 2]
    return _function(language, items[number], ("finish", "repair")[number % 2])


def _log(rng) -> tuple[str, str]:
    lines = []
    for i in range(30):
        level = rng.choice(("INFO", "INFO", "WARN", "ERROR"))
        lines.append(f"2031-04-{1 + i // 3:02} {6 + i % 12:02}:{rng.randrange(60):02} {level} {rng.choice(PRODUCTS)} {rng.choice(NAMES).lower()}")
    return "app.log", "\n".join(lines) + "\n"


def _stock(rng) -> tuple[str, str]:
    rows = [f"{p},{rng.randrange(1, 300)},{rng.choice(PLACES)}" for p in rng.sample(PRODUCTS, 12)]
    return "stock.csv", "product,count,place\n" + "\n".join(rows) + "\n"


def _unit(rng) -> tuple[str, str]:
    text = ("[Unit]\nDescription=nightly copy\nAfter=network.target\n\n[Service]\nType=oneshot\n"
            f"ExecStart=/usr/bin/copy --jobs {rng.randrange(2, 9)}\nTimeoutStartSec={rng.randrange(60, 600)}\nUser={rng.choice(NAMES).lower()}\n"
            "\n[Install]\nWantedBy=multi-user.target\n")
    return "copy.service", text


# (file, what the pipeline shall print, a command that prints it)
SHELL = (
    (_log, "the number of lines that have the level ERROR", "grep -c ' ERROR ' app.log"),
    (_log, "how often each level occurs, as `count level`, most frequent first, equal counts by name",
     "awk '{print $3}' app.log | sort | uniq -c | sort -k1,1nr -k2 | awk '{print $1, $2}'"),
    (_log, "the distinct dates that have at least one WARN line, sorted", "awk '$3 == \"WARN\" {print $1}' app.log | sort -u"),
    (_log, "the names (last column) of all ERROR lines, sorted, each once", "awk '$3 == \"ERROR\" {print $5}' app.log | sort -u"),
    (_stock, "the sum of the column count", "tail -n +2 stock.csv | awk -F, '{s += $2} END {print s}'"),
    (_stock, "the three products with the highest count, highest first, names only", "tail -n +2 stock.csv | sort -t, -k2,2nr | head -n 3 | cut -d, -f1"),
    (_stock, "the distinct places, sorted", "tail -n +2 stock.csv | cut -d, -f3 | sort -u"),
    (_stock, "the products with a count below 100, sorted by name", "tail -n +2 stock.csv | awk -F, '$2 < 100 {print $1}' | sort"),
    (_stock, "the lines of the file without the header, with tabs in place of commas, sorted", "tail -n +2 stock.csv | tr ',' '\\t' | sort"),
    (_unit, "the file with TimeoutStartSec set to 900", "sed 's/^TimeoutStartSec=.*/TimeoutStartSec=900/' copy.service"),
    (_unit, "the names of the sections, without brackets, in the order of the file", "grep -o '^\\[[^]]*' copy.service | tr -d '['"),
    (_unit, "the file without empty lines and with `User=nobody`", "sed -e '/^$/d' -e 's/^User=.*/User=nobody/' copy.service"))


def shell(index: int) -> dict:
    make, wanted, command = SHELL[index % 12]
    name, text = make(rng_of("shell", index))
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / name).write_text(text)
        stdout = subprocess.run(["bash", "-c", command], cwd=folder, env={"PATH": os.defpath, "LC_ALL": "C"}, check=True, capture_output=True,
                                text=True).stdout
    message = (f"The folder holds one file, {name}:\n\n{_block('', text)}\n\nWrite one bash pipeline that prints {wanted}. Answer with the command "
               "in one code block and nothing else.")
    return {"messages": [user(message)], "oracle": {"kind": "shell", "files": {name: text}, "stdout": stdout}, "reference": _block("bash", command)}
