"""The points of an answer: `pytest course` or `nosetests course` ends with the line "points: x of 100".

The name of each test says its points. The answer is in this folder, or in that which COURSE_ANSWER names. The
executor is tried with kernels of NumPy, so that it needs none of part 2; only the last tests need both parts.
"""

import atexit
import functools
import importlib.util
import itertools
import os
import re
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np

BORROWED = r"\b(dlsys|topi|relax|meta_schedule|dlight|torch|jax|scipy|importlib|__import__|exec|eval)\b"
POSSIBLE, EARNED = {}, {}  # the points of each test


def graded(test, name=""):
    """The test, called with the answer's modules `executor` and `kernels`; its points count if it passes."""
    name = name or test.__name__
    POSSIBLE[name] = int(re.findall(r"\d+", name)[-1])

    def run():
        EARNED[name] = 0
        test(*answer(os.environ.get("COURSE_ANSWER") or str(Path(__file__).parent)))
        EARNED[name] = POSSIBLE[name]

    run.__name__ = name
    return run


@atexit.register
def show_points():
    if EARNED:
        print(f"\npoints: {sum(EARNED.values())} of {sum(POSSIBLE.values())}")


@functools.cache
def answer(folder):
    """The modules `executor` and `kernels` of a folder, which must not name what is an answer already."""
    paths = [Path(folder, f"{name}.py") for name in ("kernels", "executor")]  # the second imports the first
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            word = re.search(BORROWED, line)
            assert not word, f"{path.name}, line {number}: {word[0]}: an answer uses NumPy and TVM's te, tirx and s_tir"
    for path in paths:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["executor"], sys.modules["kernels"]


def _log_softmax(x):
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def _sum_to(g, x):
    g = g.sum(tuple(range(g.ndim - x.ndim)))
    return g.sum(tuple(axis for axis, size in enumerate(x.shape) if size == 1), keepdims=True)


NUMPY = {
    "add": np.add,
    "mul": np.multiply,
    "matmul": lambda a, b, trans_a, trans_b: (a.T if trans_a else a) @ (b.T if trans_b else b),
    "relu": lambda x: np.maximum(x, 0),
    "relu_gradient": lambda x, g: np.where(x > 0, g, 0),
    "softmax": lambda x: np.exp(_log_softmax(x)),
    "cross_entropy": lambda x, y: -(y * _log_softmax(x)).sum().reshape(1),
    "sum_to": _sum_to,
}
FLAGS = [{"trans_a": a, "trans_b": b} for a in (False, True) for b in (False, True)]
BROADCASTS = [((4, 3), (4, 3)), ((4, 3), (3,)), ((3,), (4, 3)), ((4, 1), (3,)), ((1,), (2, 4, 3))]
SHAPES = {  # of inputs
    "add": BROADCASTS,
    "mul": BROADCASTS,
    "matmul": [((2, 5), (5, 4)), ((2, 5), (4, 5)), ((5, 2), (5, 4)), ((5, 2), (4, 5))],  # as FLAGS say
    "relu": [((4, 3),), ((2, 4, 3),)],
    "relu_gradient": [((40,), (40,)), ((4, 3), (4, 3))],
    "softmax": [((4, 7),), ((1, 3),)],
    "cross_entropy": [((4, 7), (4, 7)), ((1, 3), (1, 3))],
    "sum_to": [((4, 3), (3,)), ((4, 3), (4, 1)), ((4, 3), (4, 3)), ((2, 4, 3), (1, 3)), ((4, 3), (1,))],
}
WRONG = [("add", (2, 3), (2,)), ("mul", (4, 3), (3, 3)), ("matmul", (2, 3), (4, 5)), ("matmul", (2, 3), (3,)),
         ("relu_gradient", (2, 3), (3,)), ("cross_entropy", (4, 3), (4, 2)), ("sum_to", (3,), (4, 3))]  # fmt: skip


def cases(op):
    """The inputs' shapes, the attributes, and both in words."""
    for shapes, attrs in zip(SHAPES[op], FLAGS if op == "matmul" else itertools.repeat({}), strict=False):
        yield shapes, attrs, f"{op} of {' and '.join(map(str, shapes))} {attrs or ''}".rstrip()


def draw(*shapes):
    """Whole numbers from -3 to 3, which are added without rounding in any order."""
    random = np.random.default_rng(1)
    return [random.integers(-3, 4, shape).astype("float32") for shape in shapes]


def same(actual, expected, where):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4, err_msg=where)


def check_shapes(executor, kernels, *ops):
    for op in ops:
        for shapes, attrs, where in cases(op):
            node = executor.Node(op, *map(executor.variable, "ab"[: len(shapes)]), **attrs)
            expected, actual = NUMPY[op](*draw(*shapes), **attrs).shape, executor.infer_shape(node, list(shapes))
            assert actual == expected, f"infer_shape: {where} is {actual}, not {expected}"


@graded
def test_wrong_shapes_are_errors_4_points(executor, kernels):
    for op, *shapes in WRONG:
        node, message = executor.Node(op, *map(executor.variable, "ab"), **FLAGS[0] if op == "matmul" else {}), ""
        try:
            executor.infer_shape(node, shapes)
        except executor.ShapeError as error:
            message = str(error)
        asked = f"infer_shape: {op} of {shapes} must raise ShapeError with the node's name and both shapes"
        assert all(text in message for text in (node.name, *map(str, shapes))), f"{asked}, not {message!r}"


@graded
def test_lifetimes_8_points(executor, kernels):
    x, w = map(executor.variable, "xw")
    a = executor.Node("relu", x)
    b, unread = a @ w, a + x
    c = executor.Node("relu", b)
    d = b + c
    e = d * d
    expected = {a: (0, 3), b: (1, 4), c: (2, 4), unread: (3, 3), d: (4, 6), e: (5, 6)}
    actual = executor.lifetimes(list(expected), [d, e, x])
    for node, span in expected.items():
        where = f"lifetimes: steps {list(expected)}, outputs {[d, e, x]}: {node} of {node.inputs}"
        assert actual.get(node) == span, f"{where} lives from and to {actual.get(node)}, not {span}"
    assert set(actual) == set(expected), f"lifetimes: these are no steps: {set(actual) - set(expected)}"


def drawn_spans(executor):
    """Spans and sizes of 30 values, 20 times."""
    random = np.random.default_rng(0)
    for _ in range(20):
        nodes = [executor.variable(f"step{step}") for step in range(30)]
        spans = {node: (step, min(30, step + int(random.integers(8)))) for step, node in enumerate(nodes)}
        nbytes = 4 * random.choice([1, 10, 100, 1000], 30) * random.integers(1, 9, 30)
        yield spans, dict(zip(nodes, nbytes.tolist(), strict=True))


@graded
def test_no_two_live_values_share_bytes_9_points(executor, kernels):
    for spans, nbytes in drawn_spans(executor):
        start, size = executor.plan_memory(spans, nbytes)
        end = {x: start[x] + nbytes[x] for x in spans}
        where = {x: f"{x} (bytes {start[x]} to {end[x]}, alive in steps {spans[x]})" for x in spans}
        for x in spans:
            inside = start[x] % 64 == 0 and start[x] >= 0 and end[x] <= size
            assert inside, f"plan_memory: {where[x]} begins at no multiple of 64 or is not within {size} bytes"
        for x, y in itertools.combinations(spans, 2):
            alive = spans[x][0] <= spans[y][1] and spans[y][0] <= spans[x][1]
            shared = start[x] < end[y] and start[y] < end[x]
            assert not (alive and shared), f"plan_memory: {where[x]} shares bytes with {where[y]}"


@graded
def test_the_arena_is_small_6_points(executor, kernels):
    ratios = []
    for spans, nbytes in drawn_spans(executor):
        alive = (sum(nbytes[x] for x in spans if spans[x][0] <= step <= spans[x][1]) for step in range(31))
        ratios.append(executor.plan_memory(spans, nbytes)[1] / max(alive))
    mean = statistics.mean(ratios)
    assert mean <= 1.15, f"plan_memory: {mean:.2f} times the bytes of the worst step in the mean; 1.15 is asked"


def apart(spans, nbytes):
    """A plan in which no two values share memory."""
    *starts, size = itertools.accumulate((-(-nbytes[node] // 64) * 64 for node in spans), initial=0)
    return dict(zip(spans, starts, strict=True)), size


def run_example(executor, *runs):
    """The executor of a graph without broadcasts, the outputs of runs for an x of so many rows, and the kernels built.
    These are NumPy's, no two values share memory, and all values must be right."""
    x, w, unread = map(executor.variable, "xwu")
    two, hidden = executor.Node("constant", value=2), executor.Node("relu", x @ w)
    outputs, built = [], []

    def build(op, shapes, **attrs):
        built.append(op)
        return lambda *arrays: np.copyto(arrays[-1], NUMPY[op](*arrays[:-1], **attrs))

    softmax = executor.Node("softmax", executor.matmul(hidden, w, False, True))
    tried = executor.Executor([softmax, hidden * hidden, two * two], build)
    for run, rows in enumerate(runs):
        feed = dict(zip((x, w, unread), draw((rows, 3), (3, 5), (2,)), strict=True))
        feed[x] += run  # other values than before
        values = {**feed, two: np.array([2])}
        for node in tried.steps:
            values[node] = NUMPY[node.op](*(values[x] for x in node.inputs), **node.attrs)
        with mock.patch.object(executor, "plan_memory", apart):
            outputs += tried.run(feed)
        for node, value in [*tried.values.items(), *zip(tried.outputs, outputs[-3:], strict=True)]:
            same(value, values[node], f"run: {node} of {node.inputs}, in run {run} with x of {rows} rows")
    return tried, outputs, built


@graded
def test_run_computes_each_step_in_the_arena_7_points(executor, kernels):
    tried, _, _ = run_example(executor, 4)
    for node, value in tried.values.items():
        inside = np.shares_memory(value, tried.arena)
        assert inside == (node in tried.steps), f"prepare: {node}: all steps are in the arena, and no others"


@graded
def test_run_again_5_points(executor, kernels):
    tried, outputs, built = run_example(executor, 4, 4, 6, 6)
    assert len(built) == 2 * len(tried.steps), f"run: for two shapes of feeds, 4, 4, 6, 6, these were built: {built}"
    for value in outputs:
        copied = not any(np.shares_memory(value, other) for other in (tried.arena, *tried.values.values()))
        assert copied, "run: a result is no copy: the next run will change it"


def check_kernels(executor, kernels, *ops):
    """Compares default loops with NumPy; logits reach 1500, whose exp is infinite."""
    for op in ops:
        for shapes, attrs, where in cases(op):
            for scale in (1, 500) if op in ("softmax", "cross_entropy") else (1,):
                first, *rest = draw(*shapes)
                function = kernels.default_loops(op, shapes, **attrs)
                check_loops(executor, kernels, function, [first * scale, *rest], op, attrs, f"kernels.{where}")


def check_loops(executor, kernels, function, inputs, op, attrs, where):
    expected, actual = NUMPY[op](*inputs, **attrs), tuple(map(int, function.params[-1].shape))
    assert actual == expected.shape, f"{where}: the shape is {actual}, not {expected.shape}"
    arrays = [executor.empty(value.shape) for value in (*inputs, expected)]
    for array, value in zip(arrays, [*inputs, np.nan], strict=True):
        array[...] = value
    kernels.compile_loops(function)(*arrays)
    same(arrays[-1], expected, f"{where}, first input from {inputs[0].min():g} to {inputs[0].max():g}")


@graded
def test_schedule_keeps_the_values_4_points(executor, kernels):
    for (m, k, n), flags in zip(((33, 17, 35), (1, 5, 3), (64, 10, 7), (40, 64, 64)), FLAGS, strict=True):
        a, b = draw((k, m) if flags["trans_a"] else (m, k), (n, k) if flags["trans_b"] else (k, n))
        function = kernels.schedule_matmul(kernels.default_loops("matmul", (a.shape, b.shape), **flags))
        where = f"schedule_matmul: {m} x {k} x {n}, {flags}"
        assert "T.vectorized" in function.script(), f"{where}: no loop is vectorized"
        check_loops(executor, kernels, function, [a, b], "matmul", flags, where)


@graded
def test_schedule_is_ten_times_as_fast_8_points(executor, kernels):
    """By the time of the processor, which other programs and more threads do not change."""
    arrays, times = [executor.empty((384, 384)) for _ in range(3)], ([], [])
    for array in arrays:
        array.fill(1)
    default = kernels.default_loops("matmul", ((384, 384),) * 2)
    loops = [kernels.compile_loops(function) for function in (default, kernels.schedule_matmul(default))]
    for kernel, taken in [*zip(loops, times, strict=True)] * 5:
        start = time.process_time()
        kernel(*arrays)
        taken.append(time.process_time() - start)
    ratio = statistics.median(times[0]) / statistics.median(times[1])
    assert ratio >= 10, f"schedule_matmul: {ratio:.1f} times as fast as the default loops of 384 x 384 x 384, not 10"


def check_learning(executor, kernels, *sizes):
    """Trains layers of these sizes on scikit-learn's digits, by the answer's kernels and executor."""
    from sklearn.datasets import load_digits

    random, batch, parameters = np.random.default_rng(0), 125, {}
    images, labels = load_digits(return_X_y=True)
    images, targets = (images / 16).astype("float32"), np.eye(10, dtype="float32")[labels]
    X, y = map(executor.variable, "Xy")
    out = X
    for layer, shape in enumerate(itertools.pairwise(sizes)):
        W, b = executor.variable(f"W{layer}"), executor.variable(f"b{layer}")
        parameters |= {W: random.normal(scale=0.2, size=shape).astype("float32"), b: np.zeros(shape[1], "float32")}
        out = (executor.Node("relu", out) if layer else out) @ W + b
    loss = executor.Node("cross_entropy", out, y) * executor.Node("constant", value=1 / batch)
    grads, rate = executor.gradients(loss, list(parameters)), executor.Node("constant", value=-0.5)
    updates = [value + rate * grad for value, grad in zip(parameters, grads, strict=True)]
    trainer, losses = executor.Executor([loss, *updates]), []
    order = random.permutation(len(labels))  # the first 1500 to learn from, the others to try
    for rows in [*order[:1500].reshape(-1, batch)] * 20:
        value, *updated = trainer.run({X: images[rows], y: targets[rows], **parameters})
        losses.append(value[0])
        parameters = dict(zip(parameters, updated, strict=True))
    (logits,) = executor.Executor([out]).run({X: images[order[1500:]], **parameters})
    right = (logits.argmax(1) == labels[order[1500:]]).mean()
    where = f"layers {sizes}: the loss goes from {losses[0]:.3f} to {losses[-1]:.3f}"
    assert right >= 0.9, f"{where}, {right:.0%} of the digits are right, 90% are asked"


ROWS = {  # a test each: a function above, and what it is called with behind the modules
    "test_shapes_of_products_5_points": (check_shapes, ["matmul"]),
    "test_shapes_of_broadcasts_5_points": (check_shapes, ["add", "mul"]),
    "test_shapes_of_others_4_points": (check_shapes, ["relu", "relu_gradient", "softmax", "cross_entropy", "sum_to"]),
    "test_kernels_add_and_mul_4_points": (check_kernels, ["add", "mul"]),
    "test_kernel_matmul_6_points": (check_kernels, ["matmul"]),
    "test_kernel_relu_2_points": (check_kernels, ["relu"]),
    "test_kernel_relu_gradient_2_points": (check_kernels, ["relu_gradient"]),
    "test_kernel_softmax_4_points": (check_kernels, ["softmax"]),
    "test_kernel_cross_entropy_5_points": (check_kernels, ["cross_entropy"]),
    "test_kernel_sum_to_4_points": (check_kernels, ["sum_to"]),
    "test_logistic_regression_learns_4_points": (check_learning, [64, 10]),
    "test_three_layers_learn_4_points": (check_learning, [64, 32, 16, 10]),
}
for _name, (_check, _of) in ROWS.items():
    globals()[_name] = graded(lambda *modules, check=_check, of=_of: check(*modules, *of), _name)
