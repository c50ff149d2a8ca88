"""Prompt encoder of tools/train against the published golden pairs and the check hashes of spec/model.md 8.3."""

import hashlib
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train"))
import chat_format  # noqa: E402

GOLDEN = ROOT.parent / "shared" / "data" / "encoding_v4"


class ChatFormat(unittest.TestCase):
    def test_golden_pairs(self):
        if not GOLDEN.is_dir():
            self.skipTest("shared/data/encoding_v4 is not present beside the repository")
        for pair in (1, 2, 3, 4):
            data = json.loads((GOLDEN / f"input_{pair}.json").read_text(encoding="utf-8"))
            messages = data
            if isinstance(data, dict):
                messages = data["messages"]
                messages[0]["tools"] = data["tools"]
            text = chat_format.encode(messages, "v4", thinking=pair != 4)
            self.assertEqual(text, (GOLDEN / f"output_{pair}.txt").read_text(encoding="utf-8"), f"pair {pair}")

    def test_tools_block_hashes(self):
        for generation, size, head, tail in (("v4", 989, "c7d31593", "dcd904"), ("v41", 983, "3c2b43c0", "c477ac")):
            block = chat_format.tools_block([], generation).encode()
            digest = hashlib.sha256(block).hexdigest()
            self.assertEqual((len(block), digest[:8], digest[-6:]), (size, head, tail))

    def test_v41_system_token_and_effort(self):
        user = [{"role": "user", "content": "Hi"}]
        self.assertEqual(chat_format.encode(user, "v41", thinking=False),
                         "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>")
        self.assertEqual(
            chat_format.encode(user, "v41", thinking=True),
            "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the "
            "reasoning)\n\n<｜User｜>Hi<｜Assistant｜><think>")
        with self.assertRaisesRegex(ValueError, "effort"):
            chat_format.encode(user, "v41", thinking=True, effort=101)

    def test_tool_results_follow_the_order_of_the_calls(self):
        call = lambda n: {"id": n, "function": {"name": "f", "arguments": {}}}  # noqa: E731
        text = chat_format.encode(
            [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call("a"), call("b")]},
             {"role": "tool", "tool_call_id": "b", "content": "B"}, {"role": "tool", "tool_call_id": "a", "content": "A"}],
            "v4", thinking=False)
        self.assertIn("<｜User｜><tool_result>A</tool_result>\n\n<tool_result>B</tool_result><｜Assistant｜>", text)


if __name__ == "__main__":
    unittest.main()
