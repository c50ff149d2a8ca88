"""The `onelane` program from outside: what it prints, what it refuses and with which exit code.

The binary is named by ONELANE_BIN.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train"))
import chat_format  # noqa: E402

BINARY = os.environ.get("ONELANE_BIN", "")
MINI = ROOT / "models" / "mini-v41"
SHARED = ROOT.parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not BINARY, reason="ONELANE_BIN does not name the onelane binary")


def onelane(*arguments, stdin=None):
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300)


def ok(*arguments, stdin=None):
    done = onelane(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "subcommand"),
        (["generate"], "--model"),
        (["generate", "-m", MINI], "prompt"),
        (["generate", "-m", MINI, "-p", "x", "--file", "y"], "prompt"),
        (["generate", "-m", MINI, "-p", "x", "--max-tokens", "0"], "--max-tokens"),
        (["generate", "-m", MINI, "-p", "x", "--draft", "-1"], "--draft"),
        (["nonsense"], "subcommand"),
    ],
)
def test_wrong_use_exits_with_2_and_names_the_flag(arguments, says):
    done = onelane(*arguments)
    assert done.returncode == 2
    assert says in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["generate", "-m", "/nowhere", "-p", "x"], "/nowhere/tokenizer.json"),
        (["generate", "-m", MINI, "--file", "/nowhere.txt"], "/nowhere.txt"),
        (["generate", "-m", MINI, "-p", "x", "--backend", "gpu"], "--backend"),
        (["generate", "-m", MINI, "-p", "x", "--temperature", "-1"], "temperature"),
        (["generate", "-m", MINI, "-p", "x", "--top-p", "0"], "top_p"),
        (["score", "-m", MINI, "--file", "/dev/null"], "/dev/null"),
        (["inspect", "/nowhere"], "/nowhere"),
    ],
)
def test_failures_exit_with_1_and_name_the_thing(arguments, says):
    done = onelane(*arguments)
    assert done.returncode == 1
    assert says in done.stderr and done.stdout == ""


@pytest.fixture
def broken(tmp_path):
    """A copy of mini-v41 that a test may damage."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(MINI / name, tmp_path)
    return tmp_path


def test_a_truncated_checkpoint_is_refused_by_name(broken):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    done = onelane("generate", "-m", broken, "-p", "x")
    assert done.returncode == 1 and "model.safetensors" in done.stderr


def test_a_missing_tensor_is_refused_by_name(broken):
    path = broken / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"layers.3.attn.wq_a.weight"', b'"layers.3.attn.wq_z.weight"', 1))
    done = onelane("generate", "-m", broken, "-p", "x")
    assert done.returncode == 1
    assert "layers.3.attn.wq_a.weight" in done.stderr and "layers.3.attn.wq_z.weight" in done.stderr


def test_a_tokenizer_of_another_model_is_refused(broken):
    config = broken / "config.json"
    config.write_text(config.read_text().replace('"engram_compressed_vocab_size": 1821', '"engram_compressed_vocab_size": 1822'))
    done = onelane("generate", "-m", broken, "-p", "x")
    assert done.returncode == 1 and "engram_compressed_vocab_size" in done.stderr


def test_generate_json_and_depths_agree():
    texts = set()
    for depth in (0, 2, 5):
        made = json.loads(ok("generate", "-m", MINI, "-p", "def main():\n", "--max-tokens", 40, "--temperature", 0,
                             "--draft", depth, "--ignore-eos", "--json"))
        assert len(made["tokens"]) == 40 and made["finish_reason"] == "length"
        assert made["usage"]["completion_tokens"] == 40
        texts.add(made["text"])
    assert len(texts) == 1


def test_sampling_repeats_with_its_seed():
    run = lambda seed: ok("generate", "-m", MINI, "-p", "The ", "--max-tokens", 30, "--seed", seed, "--ignore-eos")
    assert run(1) == run(1)
    assert run(1) != run(2)


def test_jsonl_names_the_line_that_is_wrong(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "a", "max_tokens": 3}\n\n{"prompt": 7}\n')
    done = onelane("generate", "-m", MINI, "--jsonl", tasks, "--temperature", 0, "--json")
    assert done.returncode == 1
    assert f"{tasks}:3" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_profile_runs_itself_under_ncu(tmp_path):
    ncu, seen = tmp_path / "ncu", tmp_path / "seen"
    ncu.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" > {seen}
while [ "$1" != --metrics ]; do shift; done
echo '==PROF== Connected'
echo "\\"ID\\",\\"Kernel Name\\",\\"$(echo "$2" | sed 's/,/","/g')\\""
echo '"","","ns","%","%","%","%"'
echo '"0","multiply_experts","2,000","90","40","10","70"'
""")
    ncu.chmod(0o755)
    command = ["bench", "step", "-m", MINI, "--rows", 6, "--profile"]
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    run = subprocess.run([BINARY, *map(str, command)], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert re.search(r"multiply_experts +1 +2\.0 +0\.90 +0\.40 +0\.10 +0\.70", run.stdout), run.stdout
    assert seen.read_text().splitlines()[-6:] == ["step", "-m", str(MINI), "--rows", "6", "--profiled"]
    ncu.write_text("#!/bin/sh\necho '==ERROR== no permission'\nexit 3\n")
    run = subprocess.run([BINARY, *map(str, command)], capture_output=True, text=True, env=environment)
    assert run.returncode == 1 and "no permission" in run.stderr
    alone = subprocess.run([BINARY, "bench", "step", "-m", str(MINI), "--rows", "6", "--profiled"], capture_output=True, text=True)
    assert alone.returncode == 0 and alone.stdout == ""


def test_picks_of_a_text_drive_a_synthetic_model(tmp_path):
    text, trace = tmp_path / "text.txt", tmp_path / "routing.json"
    text.write_text("Some text whose experts are counted. " * 10)
    tokens = json.loads(ok("score", "-m", MINI, "--file", text, "--routing-out", trace, "--json"))["tokens"]
    layers = json.loads(trace.read_text())["layers"]
    assert len({sum(counts) for counts in layers.values()}) == 1
    assert sum(layers["0"]) % tokens == 0
    refused = onelane("bench", "step", "--synthetic", "v4", "--layers", 1, "--routing", f"trace:{trace}")
    assert refused.returncode == 1 and "experts in layer 0" in refused.stderr


def test_score_windows_and_totals(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Some text to score, twice. " * 40)
    whole = json.loads(ok("score", "-m", MINI, "--file", text, "--json"))
    assert len(whole["logprobs"]) == whole["tokens"] == len(whole["token_ids"])
    assert whole["bytes"] == text.stat().st_size and max(whole["logprobs"]) <= 0
    cut = json.loads(ok("score", "-m", MINI, "--file", text, "--window", 32, "--json"))
    assert cut["logprobs"][:31] == whole["logprobs"][:31]  # the first window sees the same
    assert cut["bits_per_byte"] > whole["bits_per_byte"]
    assert onelane("score", "-m", MINI, "--file", text, "--window", 1).returncode == 1


def test_inspect_json_of_the_mini_and_of_the_full_size_configs():
    mini = json.loads(ok("inspect", MINI, "--json"))
    assert mini["generation"] == "v4.1" and mini["tensor_count"] == 616
    for name, count in (("v4-flash-0731", 72_317), ("v41-flash", 96_085)):
        if not (SHARED / "configs" / name).exists():
            pytest.skip("full-size configs not present")
        full = json.loads(ok("inspect", SHARED / "configs" / name, "--config-only", "--json"))
        assert full["tensor_count"] == count


MESSAGES = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
     {"role": "assistant", "content": "Hi.", "reasoning_content": "Greet."}, {"role": "user", "content": "More?"}],
]


@pytest.mark.parametrize("model, generation", [("mini-v41", "v41"), ("mini-v4", "v4")])
@pytest.mark.parametrize("mode", ["thinking", "chat"])
@pytest.mark.parametrize("messages", MESSAGES)
def test_encode_equals_the_training_scripts_encoder(tmp_path, model, generation, mode, messages):
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"messages": messages, "thinking_mode": mode}))
    expected = chat_format.encode(messages, generation=generation, thinking=mode == "thinking")
    assert ok("encode", "-m", ROOT / "models" / model, "--file", request) == expected


def test_parse_reads_reasoning_content_and_calls():
    text = ("I need the tool.</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get\">\n"
            "<｜DSML｜ parameter name=\"n\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>")
    message = json.loads(ok("parse", "-m", MINI, "--thinking", stdin=text))
    assert message["reasoning_content"] == "I need the tool."
    assert message["tool_calls"][0]["function"]["name"] == "get"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"n": 3}


def test_chat_answers_resets_and_leaves():
    out = ok("chat", "-m", MINI, "--temperature", 0, "--max-tokens", 200, stdin="Add 12 and 34.\n/reset\n/what\n/exit\n")
    assert "46" in out and "conversation forgotten" in out and "/reset" in out


def test_bench_step_accounts_for_a_step(tmp_path):
    report = tmp_path / "step.json"
    flags = ["--rows", "1,6", "--context", "1K", "--steps", "1", "--repeats", "1", "--accept", "3", "--json", report]
    text = ok("bench", "step", "-m", MINI, *flags)
    assert "6 rows of 1 sequence(s) at context 1024" in text and "sum of stages" in text
    data = json.loads(report.read_text())
    assert data["schema"] == "onelane-step/1" and data["backend"] == "cpu" and data["layers"] > 0
    plain, drafting = data["results"]
    assert plain["rows"] == 1 and not any(stage["part"] == "draft" for stage in plain["stages"])
    stages = {(stage["part"], stage["stage"]): stage for stage in drafting["stages"]}
    assert stages["chain", "markov"]["calls"] == stages["chain", "choose"]["calls"] == 5
    assert stages["target", "route, experts"]["calls"] == data["layers"]
    assert all(stage["us"] >= 0 for stage in stages.values())
    assert drafting["bytes"] > plain["bytes"] > 0 and drafting["tokens_per_s"] > 0
    assert drafting["bytes"] == pytest.approx(sum(stage.get("bytes", 0) for stage in stages.values()))


def test_bench_step_times_a_prompt():
    data = json.loads(ok("bench", "step", "-m", MINI, "--rows", "", "--context", "", "--prefill", "200", "--chunk", "96",
                         "--repeats", "1", "--json", "-"))
    (prompt,) = data["results"]
    assert prompt["prefill_tokens"] == 200 and prompt["flops"] > 0 and prompt["tflop_s"] > 0
    heads = [stage["calls"] for stage in prompt["stages"] if stage["stage"] == "head"]
    assert heads == [1]


@pytest.mark.parametrize(
    "flags, code, says",
    [
        (["--rows", "0"], 2, "--rows"),
        (["--context", "x"], 2, "--context"),
        (["--rows", "", "--prefill", ""], 2, "nothing to measure"),
        (["--context", "1M"], 1, "max_position_embeddings"),
        (["--synthetic", "v4"], 2, "model"),
    ],
)
def test_bench_step_refuses(flags, code, says):
    done = onelane("bench", "step", "-m", MINI, *flags)
    assert done.returncode == code and says in done.stderr and done.stdout == ""
