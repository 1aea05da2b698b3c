"""The apps start, evaluate, and write what they promise; that they learn is measured, see the README."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

APPS = Path(__file__).resolve().parent.parent / "apps"
CASES = (
    (("transformer.py", "--model", "lstm", "--words", "100", "--steps", "0", "--sample", "4"), "<eos> "),
    (("transformer.py", "--steps", "0", "--sample", "4"), "nats a token (perplexity"),
    (("mlp.py", "--epochs", "0"), "validation accuracy = 0."),
    (("resnet9.py", "--epochs", "0"), "test accuracy = 0."),
)


def test_apps_run() -> None:
    running = []
    for (app, *options), expected in CASES:
        command = [sys.executable, str(APPS / app), *options]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        running.append((child, expected))
    for child, expected in running:
        told, _ = child.communicate(timeout=300)
        assert child.returncode == 0 and expected in told, told
