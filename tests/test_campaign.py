"""Some graphs of `tools/campaign.py` and programs of `tools/campaign_torch.py`, and planted mistakes."""

import sys
from pathlib import Path
from unittest import mock

import pytest
from optional import torch

TOOLS = Path(__file__).parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
import campaign  # noqa: E402 - it lies beside the tests, not among them

FOUND = [  # (seed, program), each wrong at its time
    (  # a value with a `Let` computed in place at two indices: one variable was defined twice
        7,
        [("gram", 404, 666, 49), ("div", 840, 548, 96), ("unsqueeze", 219, 38, 88), ("sub", 428, 71, 246),
         ("logsumexp", 508, 696, 544)],
    ),
]  # fmt: skip


@pytest.mark.slow
def test_drawn_graphs_and_those_that_it_found_are_right() -> None:
    assert torch.nn  # or skipped, as graphs are compared with it
    for seed, program in [*FOUND, *((seed, campaign.drawn(seed)) for seed in range(2))]:
        assert campaign.failure(program, seed) is None


@pytest.mark.slow
def test_a_planted_mistake_is_found_and_shrunk() -> None:
    assert torch.nn
    wrong = campaign.Operation(lambda lib, x, n: lib.tanh(x) * (1.0 if lib is torch else 1.001))
    with mock.patch.dict(campaign.OPERATIONS, tanh=wrong):
        told = campaign.failure([(name, 0, 0, 0) for name in ("neg", "tanh", "exp")], 1)
    assert told is not None and "off by" in told and told.endswith("[('tanh', 0, 0, 0)]")


@pytest.mark.slow
def test_drawn_programs_are_right_and_a_planted_mistake_is_found() -> None:
    assert torch.nn
    import campaign_torch
    import dlsys as dl

    for seed in (1, 5, 7):
        kind, told = campaign_torch.judged(campaign_torch.drawn(seed), seed)
        assert kind in ("equal", "both raise", "documented"), told
    lines = ("t0 = w0 * 2.0", "t1 = t0.tanh()", "look(t1)")
    with mock.patch.object(dl.Tensor, "tanh", lambda x: x):
        assert campaign_torch.judged(lines, 0)[0] == "wrong"
        assert campaign_torch.shrunk(("look(x0)", *lines), 0, "wrong") == lines
