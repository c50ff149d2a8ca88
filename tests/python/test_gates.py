"""`onelane gate` against the running server: the shortest gate, whole, and the receipt that it leaves."""

import json
import subprocess

from conftest import BINARY


def onelane(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def test_gauntlet_passes_and_its_receipt_holds(server, tmp_path):
    file, store = tmp_path / "gate.json", tmp_path / "lane.db"
    done = onelane("gate", "gauntlet", "--quick", "--receipt", file, "--db", store, server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASS     gauntlet/1\n") and done.stdout.endswith("\nPASS\n")
    receipt = json.loads(file.read_text())
    gate = receipt["gates"][0]
    assert gate["verdict"] == "PASS" and gate["planted_fault_caught"] is True and gate["null_arm"] == "PASS"
    assert gate["observed"]["right"] == 12
    assert receipt["protocol"]["mode"] == "mini, quick" and receipt["model"]["name"] == "mini-v41"
    assert onelane("receipts", "verify", file).returncode == 0
    page = onelane("receipts", "report", file, "--html", "-")
    assert page.returncode == 0 and "gauntlet/1" in page.stdout


def test_what_cannot_be_asked_is_said(server):
    wrong = onelane("gate", "gauntlet", "--profile", "tiny", server.url)
    assert wrong.returncode == 2 and "--profile tiny: there are auto, full, mini" in wrong.stderr
    assert onelane("gate", "gauntlet2", server.url).returncode == 2
    nobody = onelane("gate", "gauntlet", "http://127.0.0.1:9")
    assert nobody.returncode == 1 and "127.0.0.1:9" in nobody.stderr
