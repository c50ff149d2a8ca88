"""The frozen workload classes are what their generator writes, on any supported Python."""

import subprocess
import sys

from conftest import ROOT


def test_files_are_what_the_generator_writes():
    done = subprocess.run([sys.executable, ROOT / "tools" / "workloads" / "build.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
