"""The frozen workload classes: what their generator writes, and what the program shows of them."""

import json
import subprocess
import sys

import pytest

from conftest import BINARY, ROOT


def onelane(*arguments):
    if not BINARY:
        pytest.skip("ONELANE_BIN does not name the onelane binary")
    return subprocess.run([BINARY, "workloads", *arguments], capture_output=True, text=True)


def test_files_are_what_the_generator_writes():
    done = subprocess.run([sys.executable, ROOT / "tools" / "workloads" / "build.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_prompt_is_shown_as_the_request_that_it_is():
    shown = json.loads(onelane("show", "structured/02").stdout)
    file = json.loads((ROOT / "src/lane/workloads/structured.json").read_text())
    assert shown["messages"] == file["prompts"][1]["messages"] and shown["max_tokens"] == file["max_tokens"]


def test_list_names_the_classes_and_an_unknown_prompt_is_refused():
    said = onelane("list").stdout
    assert said.startswith("onelane-workloads/1  sha256 ") and said.count("\n") == 3 + 9
    wrong = onelane("show", "code/99")
    assert wrong.returncode == 1 and 'no prompt "code/99"' in wrong.stderr
