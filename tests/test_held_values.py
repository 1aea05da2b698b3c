"""What a program holds when it asks for gradients is computed with them, and nothing else of the way."""

import dlsys as dl
import numpy as np
from dlsys.eager.trace_cache import is_leaf
from dlsys.nn import functional


def _network(seed=0):
    random = np.random.default_rng(seed)
    weights = [dl.tensor(random.standard_normal(s).astype("float32"), requires_grad=True) for s in ((4, 8), (8, 3))]
    x, y = dl.tensor(random.standard_normal((5, 4)).astype("float32")), dl.tensor(random.integers(0, 3, 5))
    return weights, x, y


def _logits(weights, x):
    return dl.relu(x @ weights[0]) @ weights[1]


def _step(weights):
    with dl.no_grad():
        for weight in weights:
            weight -= 0.1 * weight.grad
            weight.grad = None


def test_what_is_held_is_there_after_backward():
    weights, x, y = _network()
    out = _logits(weights, x)
    want = np.maximum(x.numpy() @ weights[0].numpy(), 0) @ weights[1].numpy()
    loss = functional.cross_entropy(out, y)
    loss.backward()
    assert is_leaf(out) and is_leaf(loss)  # what it was made of is done with
    _step(weights)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((out.argmax(1) == y).float().mean().item(), np.mean(want.argmax(1) == y.numpy()))


def test_what_is_not_held_is_not_kept():
    weights, x, y = _network()
    out = _logits(weights, x)
    functional.cross_entropy(out, y).backward()
    stack, kept = [out], []
    while stack:
        for value in stack.pop().inputs:
            stack.append(value)
            kept += [value.name] if is_leaf(value) and value.inputs else []
    assert is_leaf(out) and not kept


def test_held_values_change_no_gradient():
    found = []
    for hold in (False, True):
        weights, x, y = _network(1)
        keep = []
        for _ in range(3):
            first = x @ weights[0]
            out = dl.relu(first) @ weights[1]
            if hold:
                keep.append((first, out))
            del first
            functional.cross_entropy(out, y).backward()
            _step(weights)
        found.append([weight.numpy() for weight in weights])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_many_held_values_do_not_all_become_results():
    weight = dl.tensor(np.ones((3, 3), "float32") / 3, requires_grad=True)
    x = dl.tensor(np.ones((2, 3), "float32"))
    states = []
    for _ in range(100):
        x = x @ weight
        states.append(x)
    x.sum().backward()
    assert is_leaf(states[-1]) and not is_leaf(states[0])
    np.testing.assert_allclose(states[0].numpy(), np.ones((2, 3)), rtol=1e-6)
    np.testing.assert_allclose(weight.grad.numpy(), np.full((3, 3), 200.0), rtol=1e-4)
