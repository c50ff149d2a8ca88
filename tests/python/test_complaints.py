"""What users of other engines suffered from (docs/complaints.md), tried on the running server. Each test carries the
complaint's number; those about one part of the engine stand beside that part's tests."""

import concurrent.futures
import json
import os
import signal
import time
import urllib.error
import urllib.request

import pytest

from conftest import ROOT, needs_grammar

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


def post(server, path, **body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def complete(server, prompt, tokens=32, **more):
    answer = post(server, "/v1/completions", prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, **more)
    return answer["choices"][0]["text"], answer["usage"]


def source_text(size, start=0):
    """Code, prose and shell from this repository."""
    files = sorted((ROOT / "src").rglob("*.cc")) + sorted((ROOT / "docs").rglob("*.md"))
    text = "".join(f.read_text() for f in files)
    return text[start:start + size]


@pytest.fixture(scope="module")
def plain_server(start_server):
    """The same model, without drafts and without a prefix cache."""
    return start_server("--draft-schedule", "0", "--prefix-cache=false")


def test_complaint_14_identifiers_are_copied_the_same_with_and_without_drafts(server, plain_server):
    for i in range(6):
        names = [f"{stem}_{(i * 37 + k * 101) % 997}" for k, stem in enumerate(("read_line", "parse_key", "write_row"))]
        prompt = "".join(f"def {name}(value):\n    return {name}_table[value]\n\n\n" for name in names) * 2
        drafted, usage = complete(server, prompt, 48)
        assert usage["speculation"]["steps"] < 48
        assert drafted == complete(plain_server, prompt, 48)[0]


def test_complaint_16_no_template_tokens_in_answers_beside_a_long_prompt(server, plain_server):
    prompts = [source_text(6000)] + [source_text(300, 500 * i) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt, 32)[0], prompts))
    for prompt, text in zip(prompts, answers):
        assert BOS not in text and EOS not in text
        assert text == complete(plain_server, prompt, 32)[0]


def test_complaints_17_18_the_same_long_prompt_gives_the_same_answer_all_day(server, plain_server):
    prompt = source_text(4000, 4000)
    expected = complete(plain_server, prompt)[0]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        noise = [pool.submit(complete, server, source_text(700 + 90 * i, 311 * i), 8) for i in range(16)]
        answers = [complete(server, prompt)[0] for _ in range(4)]
        for future in noise:
            future.result()
    answers.append(complete(server, prompt)[0])
    assert set(answers) == {expected}


def test_complaint_30_drafts_and_prefix_cache_go_together(server):
    before = server.total("vllm:prefix_cache_hits_total")
    prompt = source_text(3000, 20000)
    for _ in range(3):
        complete(server, prompt, 8)
    assert server.total("vllm:prefix_cache_hits_total") - before >= 2 * 128
    assert server.total("vllm:prefix_cache_queries_total") >= server.total("vllm:prefix_cache_hits_total")


@needs_grammar
@pytest.mark.parametrize("effort", ["none", "low"])
def test_complaints_38_39_structured_output_is_kept_behind_reasoning_and_ends(server, effort):
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9999},
              "sure": {"type": "boolean"}}, "required": ["sum", "sure"], "additionalProperties": False}
    for seed in range(8):
        choice = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "Add 345 and 678."}], seed=seed,
                      max_tokens=1500, reasoning_effort=effort,
                      response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}})["choices"][0]
        text = choice["message"]["content"]
        if choice["finish_reason"] == "length":
            assert text == ""  # all of it reasoning
            continue
        assert set(json.loads(text)) == {"sum", "sure"} and " " * 33 not in text


def test_complaint_47_every_block_of_reasoning_comes_in_the_same_field(server):
    messages = [{"role": "user", "content": "Add 345 and 678."}]
    for _ in range(2):
        message = post(server, "/v1/chat/completions", messages=messages, temperature=0, max_tokens=300)["choices"][0]["message"]
        assert message["reasoning_content"] and message["reasoning"] == message["reasoning_content"]
        messages += [message, {"role": "user", "content": "Add 111 and 222."}]


def test_complaint_50_depth_falls_with_load(start_server):
    server = start_server("--draft-schedule", "1:5,64:0")
    alone = complete(server, source_text(400), 48)[1]["speculation"]
    assert alone["drafted_tokens"] > 0
    before = server.total("vllm:spec_decode_num_drafts_total")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: complete(server, source_text(400), 96), range(8)))
    # All eight run side by side but for their beginnings and ends.
    assert server.total("vllm:spec_decode_num_drafts_total") - before < 8 * 96 / 4


def test_complaint_64_progress_can_be_watched(server):
    complete(server, "x", 4)
    metrics = server.metrics()
    assert any(name.startswith("onelane_progress_age_seconds") for name in metrics)
    assert server.total("onelane_steps_total") > 0 and server.total("vllm:generation_tokens_total") > 0


def test_complaint_65_acceptance_of_a_request_is_in_its_usage(server):
    speculation = complete(server, source_text(600), 64)[1]["speculation"]
    assert speculation["steps"] > 0 and speculation["drafted_tokens"] >= sum(speculation["accepted_by_position"])


def test_complaint_67_both_names_of_reasoning_in_a_stream(server):
    request = urllib.request.Request(
        server.url + "/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "stream": True, "max_tokens": 60}).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        events = [json.loads(line[6:]) for line in answer if line.startswith(b"data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert any("reasoning" in delta for delta in deltas)
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)


def test_kill_while_the_disk_tier_writes(start_server, plain_server, tmp_path):
    """Not one of the complaints, but what makes 20 and 21 worse: a cache that comes back damaged."""
    options = ("--disk-kv", tmp_path / "kv", "--kv-bytes", "8MiB", "--checkpoint-bytes", "8MiB", "--host-kv-bytes", "4MiB",
               "--max-model-len", "4096")
    prompts = [source_text(2500, 3000 * i) for i in range(8)]
    expected = [complete(plain_server, prompt, 8)[0] for prompt in prompts]
    restored = 0
    for pause in (0.05, 0.2, 0.4):
        server = start_server(*options)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(complete, server, prompt, 8) for prompt in prompts]
            for answer, text in zip(answers, expected):
                result, usage = answer.result()
                assert result == text
                restored += usage["prompt_tokens_details"]["cached_tokens"]
            for prompt in prompts:
                pool.submit(lambda p: complete(server, p + " again", 64), prompt)
            time.sleep(pause)
            os.kill(server.pid, signal.SIGKILL)
    assert restored > 0, "nothing came back from the disk"
