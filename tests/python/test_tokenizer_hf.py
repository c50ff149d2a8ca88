"""`onelane tokenize` against Hugging Face tokenizers on 10,000 fuzzed strings.

The binary is named by ONELANE_BIN.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "text"))
import tokenizer_oracle  # noqa: E402

BINARY = os.environ.get("ONELANE_BIN", "")
TOKENIZER = ROOT / "models" / "mini-v41" / "tokenizer.json"
STRINGS = 10_000


class TokenizerAgainstHuggingFace(unittest.TestCase):
    def setUp(self):
        try:
            import tokenizers  # noqa: F401
        except ImportError:
            self.skipTest("the Python package tokenizers is not installed")
        if not BINARY:
            self.skipTest("ONELANE_BIN does not name the onelane binary")

    def run_jsonl(self, texts):
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        return subprocess.run([BINARY, "tokenize", "--tokenizer", str(TOKENIZER), "--jsonl", "-"],
                              input=lines.encode(), capture_output=True, check=False)

    def test_ten_thousand_strings(self):
        pairs = list(tokenizer_oracle.vectors(TOKENIZER, STRINGS, seed=2024))
        done = self.run_jsonl(text for text, _ in pairs)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        got = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(got), STRINGS)
        wrong = [(text, ids, mine) for (text, ids), mine in zip(pairs, got) if ids != mine]
        self.assertEqual(wrong[:3], [], f"{len(wrong)} of {STRINGS} strings differ")

    def test_every_code_point(self):
        points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        from tokenizers import Tokenizer

        oracle = Tokenizer.from_file(str(TOKENIZER))
        # Between an "x" and a "1" a letter, a digit, a mark, a symbol and a space are each cut differently.
        texts = ["x".join(c + "1" for c in points[i:i + 4096]) for i in range(0, len(points), 4096)]
        done = self.run_jsonl(texts)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        for text, line in zip(texts, done.stdout.splitlines()):
            if json.loads(line) != oracle.encode(text, add_special_tokens=False).ids:
                bad = [f"U+{ord(c):04X}" for c in text if c not in "x1"][:1]
                self.fail(f"the block of 4096 code points from {bad} differs")

    def test_invalid_utf8_is_refused_with_its_offset(self):
        done = subprocess.run([BINARY, "tokenize", "--tokenizer", str(TOKENIZER)], input=b"ab\xff", capture_output=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"offset 2", done.stderr)


if __name__ == "__main__":
    unittest.main()
