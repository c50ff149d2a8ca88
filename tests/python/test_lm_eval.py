"""lm-eval against the running server: likelihood through `local-completions` is what `onelane score` says."""

import json
import math
import os
import subprocess

import pytest

from conftest import BINARY, ROOT

os.environ["HF_HUB_OFFLINE"] = "1"  # the task and its data are files
lm_eval = pytest.importorskip("lm_eval", reason="the lm-eval package is not installed")

MODEL = ROOT / "models" / "mini-v41"
BOS = 0
TASK = """task: onelane_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""


def test_perplexity_agrees_with_score(server, tmp_path):
    text = (ROOT / "docs" / "model.md").read_text()[:3000]
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    (tmp_path / "task.yaml").write_text(TASK.format(data=tmp_path / "text.jsonl"))
    scored = json.loads(subprocess.run([BINARY, "score", "-m", MODEL, "--file", tmp_path / "text.txt", "--json"],
                                       check=True, capture_output=True, text=True).stdout)

    from lm_eval.tasks import TaskManager
    results = lm_eval.simple_evaluate(
        model="local-completions", tasks=["onelane_text"], bootstrap_iters=0,
        model_args={"model": "mini-v41", "base_url": server.url + "/v1/completions", "tokenizer_backend": "remote",
                    "custom_prefix_token_id": BOS, "max_length": 4096, "num_concurrent": 1},
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False))
    measured = results["results"]["onelane_text"]["bits_per_byte,none"]
    assert math.isclose(measured, scored["bits_per_byte"], rel_tol=1e-4), (measured, scored["bits_per_byte"])
