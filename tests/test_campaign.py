"""Small seeded parts of `tools/campaign.py`, and what it found."""

import re
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from dlsys import autodiff as ad
from helpers import python
from optional import torch

TOOLS = Path(__file__).parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
import campaign_graphs  # noqa: E402 - it lies beside the tests, not among them

PARTS = "graphs", "operators", "modules", "optimizers", "leaf", "junk"  # training and kernels have tests of the others
FOUND = [  # (seed, program), each wrong at its time
    (  # a value with a `Let` computed in place at two indices: one variable was defined twice
        7,
        [("gram", 404, 666, 49), ("div", 840, 548, 96), ("unsqueeze", 219, 38, 88), ("sub", 428, 71, 246),
         ("logsumexp", 508, 696, 544)],
    ),
]  # fmt: skip


@pytest.mark.slow
def test_seeded_rounds_find_nothing_wrong() -> None:
    assert torch.nn  # what some parts compare with
    done = python("-W", "ignore", TOOLS / "campaign.py", "--seconds", "0", "--only", ",".join(PARTS))
    table = re.findall(r"^(\w+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
    assert [name for name, *_ in table] == list(PARTS)
    for _, *counts in table:
        every, right, clear, other, wrong, hung = map(int, counts)
        assert every == right + clear > 0 == other == wrong == hung, done.stdout


@pytest.mark.slow
def test_graphs_that_it_found_are_right_and_it_finds_and_shrinks_a_planted_mistake() -> None:
    assert torch.nn  # or skipped, as graphs are compared with it
    for seed, program in FOUND:
        assert campaign_graphs.problem(program, seed) is None
    table = campaign_graphs.operations()
    table["tanh"] = campaign_graphs.Operation(lambda x, n: ad.tanh_op(x) * 1.001, table["tanh"].theirs)
    count, told = Counter(), []
    program = [(name, 0, 0, 0) for name in ("neg", "tanh", "exp")]
    drawn = mock.patch.object(campaign_graphs, "drawn", lambda seed: program)
    with mock.patch.object(campaign_graphs, "operations", lambda: table), drawn:
        campaign_graphs.graphs(1, count, told.append)
    assert count == {"wrong": 1} and len(told) == 1
    assert "off by" in told[0] and told[0].endswith("[('tanh', 0, 0, 0)]")
