"""One executor for lengths that vary: of a batch, or of a text."""

from __future__ import annotations

from collections.abc import Callable

import dlsys.nn.functional as F
import numpy as np
import pytest
from dlsys import autodiff as ad
from dlsys.ops.joining import concatenate_op


def weights(*shape: int) -> ad.Node:
    rng = np.random.default_rng(len(shape) * 100 + shape[0])
    return ad.Parameter(rng.normal(size=shape).astype("float32"), "W")


BATCHES: dict[str, Callable[[ad.Node], list[ad.Node]]] = {
    "product and bias": lambda x: [ad.relu_op(x @ weights(24, 40) + weights(40))],
    "transposed weights": lambda x: [ad.matmul_op(x, weights(7, 24), trans_B=True)],
    "product over rows": lambda x: [ad.matmul_op(x, ad.exp_op(x), trans_A=True)],
    "rows": lambda x: [ad.softmax_op(x), F.layer_norm(x, (24,)), ad.sum_op(x, 0), ad.sum_op(x, 1), ad.max_op(x, 0)],
    "softmax's loss": lambda x: [ad.softmaxcrossentropy_op(x, ad.softmax_op(x)), ad.mean_op(ad.exp_op(x))],
    "gradients": lambda x: ad.gradients(ad.mean_op(ad.relu_op(x @ weights(24, 10))), [x]),
}
TEXTS: dict[str, Callable[[ad.Node], list[ad.Node]]] = {
    "scores": lambda x: [ad.softmax_op(ad.matmul_op(x, x * 0.5, trans_B=True) + 1.5)],
    "values": lambda x: [ad.matmul_op(ad.softmax_op(ad.matmul_op(x, x, trans_B=True)), x)],
    "turned": lambda x: [ad.transpose_op(x, (0, 2, 1)) * 2 + 1, x[:, ::-1] * 2],
    "joined": lambda x: [concatenate_op([x, x[:, :1]], 1), x[:, -1], x[:, 1:, 3:9]],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BATCHES, *TEXTS])
def test_all_lengths_give_the_values_of_numpy(name: str) -> None:
    X = ad.Variable("X")
    results = (BATCHES | TEXTS)[name](X)
    run, reference = ad.Executor(results), ad.Executor(results, ctx="numpy")
    rng = np.random.default_rng(0)
    for shape in [(size, 24) for size in (40, 52, 17, 33)] if name in BATCHES else [(2, n, 12) for n in (9, 2, 40, 33)]:
        feed = {X: rng.normal(size=shape).astype("float32")}
        for got, wanted in zip(run.run(feed, True), reference.run(feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=str(shape))
