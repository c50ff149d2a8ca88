"""Generators and grading of tools/train: the ideal completion of every generated task must be graded right."""

import pathlib
import random
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train"))
import chat_format  # noqa: E402
import evaluation_tasks as tasks  # noqa: E402
import task_arith  # noqa: E402
import task_recall  # noqa: E402
import task_tools  # noqa: E402


class Grading(unittest.TestCase):
    def test_ideal_tool_calls_are_valid_and_damage_is_seen(self):
        for generation in chat_format.GENERATIONS:
            for i in range(300):
                item = tasks.tool_item(random.Random(f"t{i}"), generation)
                thinking = item["group"]["mode"] == "thinking"
                text = ("why</think>" if thinking else "") + chat_format.calls_block(item["expect"]["calls"], generation) + chat_format.EOS
                self.assertEqual(tasks.grade(item, text, generation), {"exact": True, "valid": True}, text)
                self.assertFalse(tasks.grade(item, text.replace('name="', 'name="x', 1), generation)["valid"])
                cut = text[: -len(chat_format.EOS) - 3]
                self.assertFalse(tasks.grade(item, cut, generation)["valid"])

    def test_worked_arithmetic_is_right(self):
        for i in range(3000):
            p = task_arith.problem(random.Random(i))
            self.assertTrue(p["reasoning"].endswith(p["answer"]), p)
            left, right = p["answer"].split(" = ")
            self.assertEqual(eval(left), int(right))

    def test_arith_grade(self):
        item = tasks.arith_item(random.Random(1), "v41")
        r = item["expect"]
        self.assertTrue(tasks.grade(item, f"1 + 1</think>a + b = {r}{chat_format.EOS}", "v41")["exact"])
        self.assertFalse(tasks.grade(item, f"{r}", "v41")["exact"])
        self.assertFalse(tasks.grade(item, f"x</think>{r + 1}", "v41")["exact"])

    def test_recall_context_holds_every_fact_once_at_the_asked_distance(self):
        filler = [f"line {i} of the filler\n" for i in range(2000)]
        count = lambda t: len(t.split())  # noqa: E731
        for i in range(100):
            rng = random.Random(i)
            facts = task_recall.draw_facts(rng, 12, digits=bool(i % 2))
            text = task_recall.context(rng, filler, count, 2000, facts, i % 12, 700)
            for key, value in facts:
                self.assertEqual(text.count(task_recall.PREFIX + key + task_recall.LINK + value + task_recall.STOP), 1)
            after = text.split(task_recall.PREFIX + facts[i % 12][0])[1]
            self.assertLess(abs(count(after) - 700), 120)

    def test_recall_grade(self):
        for form, text in (("raw", " 12345.\nThe"), ("chat", "The code of Red Fox is 12345.")):
            item = {"task": "recall", "expect": "12345", "group": {"form": form}}
            self.assertTrue(tasks.grade(item, text, "v4")["exact"])
            self.assertFalse(tasks.grade(item, text.replace("45", "456"), "v4")["exact"])

    def test_held_out_tool_names_never_appear_in_training(self):
        for i in range(200):
            for held in (False, True):
                messages, _ = task_tools.conversation(random.Random(i), held=held)
                for tool in messages[0]["tools"]:
                    verb, thing = tool["function"]["name"].split("_", 1)
                    self.assertEqual(task_tools.held_out(verb, thing), held)


if __name__ == "__main__":
    unittest.main()
