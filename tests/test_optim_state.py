"""What an optimizer keeps between runs: the learning rate, buffers and counts, and its state_dict."""

from __future__ import annotations

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from helpers import error_of
from test_optim import CONFIGURATIONS, Model, make, numpy_gradients, start


def test_learning_rate_is_read_by_the_next_run_and_compiles_nothing() -> None:
    rates = [0.5, 0.5, 0.1, 0.0, 2.0]
    for ctx in ("numpy", "cpu"):
        model = Model(make("SGD", {"lr": 0.5}), "float32", ctx)
        values = start("float32")
        for step, lr in enumerate(rates):
            model.opt.lr = lr
            assert model.opt.lr == lr
            grads = numpy_gradients(values, *model.batches[step % 2])
            values = [p - lr * g for p, g in zip(values, grads, strict=True)]
            (found,) = model.train(1, first=step)
            for a, b in zip(found, values, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)
        assert model.executor.compilations == (1 if ctx == "cpu" else 0)


def test_one_node_in_two_executors_and_batch_sizes_shares_the_state() -> None:
    model = Model(make("Adam", {"lr": 0.01}), "float64", "numpy")
    train = model.opt.minimize(model.loss)
    other = ad.Executor([train], ctx="numpy")
    x, y = model.batches[0]
    model.train(1)
    other.run({model.x: x[:4], model.y: y[:4]})
    model.train(1)
    assert [value for key, value in model.opt.state_dict().items() if "step" in key] == [3, 3]


def test_training_goes_on_from_a_state_dict() -> None:
    for name, options in [CONFIGURATIONS[i] for i in (0, 3, 5, 11)]:
        model = Model(make(name, options), "float32", "numpy")
        model.train(5)
        model.opt.lr = 0.25
        model.opt.groups[0].schedule_lr(0.125)
        state, values = model.opt.state_dict(), [parameter.value for parameter in model.parameters]
        expected = model.train(5, first=5)
        again = Model(make(name, options), "float32", "numpy")
        again.opt.load_state_dict(state)
        assert (again.opt.lr, again.opt.groups[0].initial_lr) == (0.125, 0.25)
        for parameter, value in zip(again.parameters, values, strict=True):
            parameter.value = value
        for a, b in zip(again.train(5, first=5), expected, strict=True):
            assert all((p == q).all() for p, q in zip(a, b, strict=True)), name


def test_state_dict_holds_copies_and_load_is_strict() -> None:
    model = Model(make("Adam", {}), "float32", "numpy")
    model.train(2)
    state = model.opt.state_dict()
    assert sorted(state) == [
        "groups.0.initial_lr",
        "groups.0.lr",
        *(f"state.{i}.{name}" for i in (0, 1) for name in ("exp_avg", "exp_avg_sq", "step")),
    ]
    assert state["state.1.step"] == 2 and state["state.0.exp_avg"].shape == (5, 3)
    before = {key: np.array(value) for key, value in state.items()}
    model.train(1)
    assert all((np.asarray(state[key]) == value).all() for key, value in before.items())

    load = model.opt.load_state_dict
    present = model.opt.state_dict()
    wrong = {key: value for key, value in state.items() if key != "groups.0.lr"} | {"state.2.exp_avg": 0}
    text = error_of(dl.GraphError, load, wrong)
    assert text == "Adam.load_state_dict: missing keys: groups.0.lr; unexpected keys: state.2.exp_avg"
    assert "state.1.exp_avg has shape (3,), the value (4,)" in error_of(
        dl.ShapeError, load, state | {"state.1.exp_avg": np.zeros(4)}
    )
    assert "not an array of numbers" in error_of(dl.DTypeError, load, state | {"state.1.exp_avg": ["a"] * 3})
    assert "must be >= 0" in error_of(dl.GraphError, load, state | {"groups.0.lr": -1})
    assert "needs a dictionary" in error_of(dl.GraphError, load, [1])
    after = model.opt.state_dict()
    assert all((np.asarray(after[key]) == np.asarray(value)).all() for key, value in present.items())
