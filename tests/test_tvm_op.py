"""The kernels of `dlsys.tvm_op`: the course's twelve tests, then shapes, dtypes, special values and errors."""

from __future__ import annotations

import itertools
import math
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
import tvm
import tvm_ffi
from dlsys import autodiff as ad
from dlsys import kernels, tvm_op
from dlsys.devices import to_array
from dlsys.errors import KernelArgumentError, ShapeError
from helpers import error_of, every_case

TGT, TGT_HOST = "llvm", "llvm"
def _draw(seed, *shapes, dtype="float32", low=-1.0, high=1.0):
    rng = np.random.RandomState(seed)
    return [rng.uniform(low, high, size=shape).astype(dtype) for shape in shapes]


def _run(kernel, *inputs):
    """The kernel's output for NumPy inputs, through NumPy arrays and through device arrays, which must agree."""
    ((shape, dtype),) = kernel.outputs
    plain = np.full(shape, np.nan, dtype)
    kernel(*inputs, plain)
    out = dl.array(np.full(shape, np.nan, dtype))
    kernel(*(dl.array(value) for value in inputs), out)
    np.testing.assert_array_equal(plain, out.numpy())
    return plain


def _conv2d(x, f, stride=(1, 1), padding=(0, 0)):
    (sy, sz), (py, pz) = stride, padding
    x = np.pad(x, ((0, 0), (0, 0), (py, py), (pz, pz)))
    windows = np.lib.stride_tricks.sliding_window_view(x, f.shape[2:], axis=(2, 3))[:, :, ::sy, ::sz]
    return np.einsum("ncyzij,ocij->noyz", windows, f, optimize=True)


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _cross_entropy(logits, labels):
    shifted = logits - logits.max(-1, keepdims=True)
    return -np.sum(labels * (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))) / len(logits)


def test_matrix_elementwise_add():
    x, y = _draw(1, (500, 200), (500, 200), high=10)
    kernel = tvm_op.make_elemwise_add((500, 200), TGT, TGT_HOST, "elem_add")
    np.testing.assert_array_equal(_run(kernel, x, y), x + y)


def test_matrix_elementwise_add_by_const():
    (x,) = _draw(2, (2000, 3000), high=10)
    kernel = tvm_op.make_elemwise_add_by_const(x.shape, 2.3, TGT, TGT_HOST, "add_const")
    np.testing.assert_array_equal(_run(kernel, x), x + np.float32(2.3))


def test_matrix_elementwise_mul():
    x, y = _draw(3, (500, 200), (500, 200), high=10)
    kernel = tvm_op.make_elemwise_mul((500, 200), TGT, TGT_HOST, "elem_mul")
    np.testing.assert_array_equal(_run(kernel, x, y), x * y)


def test_matrix_elementwise_mul_by_const():
    (x,) = _draw(4, (2000, 3000), high=10)
    kernel = tvm_op.make_elemwise_mul_by_const(x.shape, 2.3, TGT, TGT_HOST, "mul_const")
    np.testing.assert_array_equal(_run(kernel, x), x * np.float32(2.3))


def test_matrix_multiply():
    for seed, (trans_a, trans_b) in enumerate(itertools.product([False, True], repeat=2)):
        shape_a, shape_b = (700, 500)[:: -1 if trans_a else 1], (500, 1000)[:: -1 if trans_b else 1]
        a, b = _draw(seed, shape_a, shape_b, high=10)
        kernel = tvm_op.make_matrix_mul(shape_a, trans_a, shape_b, trans_b, TGT, TGT_HOST, "matrix_mul")
        expected = (a.T if trans_a else a) @ (b.T if trans_b else b)
        np.testing.assert_allclose(_run(kernel, a, b), expected, rtol=1e-5)


def test_conv2d():
    x, f = _draw(6, (100, 3, 28, 28), (10, 3, 5, 5), high=10)
    kernel = tvm_op.make_conv2d(x.shape, f.shape, TGT, TGT_HOST, "conv2d")
    np.testing.assert_allclose(_run(kernel, x, f), _conv2d(x, f), rtol=1e-5, atol=1e-4)


def test_relu():
    (x,) = _draw(7, (2000, 2500), low=-10, high=10)
    kernel = tvm_op.make_relu(x.shape, TGT, TGT_HOST, "relu")
    np.testing.assert_array_equal(_run(kernel, x), np.maximum(x, 0))


def test_relu_gradient():
    x, grad = _draw(8, (2000, 2500), (2000, 2500), low=-10, high=10)
    kernel = tvm_op.make_relu_gradient(x.shape, TGT, TGT_HOST, "relu_gradient")
    np.testing.assert_array_equal(_run(kernel, x, grad), np.where(x > 0, grad, 0))


def test_softmax():
    (x,) = _draw(9, (400, 1000), low=-5, high=5)
    kernel = tvm_op.make_matrix_softmax(x.shape, TGT, TGT_HOST, "matrix_softmax")
    np.testing.assert_allclose(_run(kernel, x), _softmax(x), rtol=1e-5)


def test_softmax_cross_entropy():
    logits, labels = _draw(10, (400, 1000), (400, 1000), low=-5, high=5)
    labels = _softmax(labels)
    kernel = tvm_op.make_matrix_softmax_cross_entropy(logits.shape, TGT, TGT_HOST, "cross_entropy")
    out = _run(kernel, logits, labels)
    assert out.shape == (1,)
    np.testing.assert_allclose(out[0], _cross_entropy(logits.astype("float64"), labels), rtol=1e-5)


def test_reduce_sum_axis_zero():
    (x,) = _draw(11, (500, 200, 10), low=-10, high=10)
    kernel = tvm_op.make_reduce_sum_axis_zero(x.shape, TGT, TGT_HOST, "reduce_sum_axis_zero")
    np.testing.assert_allclose(_run(kernel, x), x.astype("float64").sum(0), rtol=1e-4, atol=1e-3)


def test_sums_of_up_to_512_rows_have_numpys_bits():
    """The course's test compares sums near 0 with atol=0, which any other order fails."""
    random, x = np.random.default_rng(0), ad.Variable("x")
    for shape in ((500, 200, 100), (512, 33), (300, 7), (2, 4096), (512, 3, 5)):
        for dtype in ("float32", "float64"):
            values = random.normal(size=shape).astype(dtype)
            kernel = tvm_op.make_reduce_sum_axis_zero(shape, TGT, TGT_HOST, "sums", dtype)
            np.testing.assert_array_equal(_run(kernel, values), values.sum(0), err_msg=str(shape))
            (found,) = ad.Executor([ad.reducesumaxiszero_op(x)]).run({x: values}, convert_to_numpy_ret_vals=True)
            np.testing.assert_array_equal(found, values.sum(0), err_msg=str(shape))


def test_broadcast_to():
    (x,) = _draw(12, (200, 300), low=-10, high=10)
    kernel = tvm_op.make_broadcast_to(x.shape, (130, 200, 300), TGT, TGT_HOST, "broadcast_to")
    np.testing.assert_array_equal(_run(kernel, x), np.broadcast_to(x, (130, 200, 300)))


def test_sgd_update_in_place():
    x, grad = _draw(13, (784, 33), (784, 33))
    kernel = tvm_op.make_sgd_update(x.shape, 0.25, TGT, TGT_HOST, "sgd_update")
    expected = x - np.float32(0.25) * grad
    device = dl.array(x)
    kernel(device, dl.array(grad), device)
    np.testing.assert_allclose(device.numpy(), expected, rtol=1e-6, atol=1e-7)
    kernel(x, grad, x)
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-7)


def test_products_of_empty_matrices_and_of_nan():
    for m, n, k in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)]:
        kernel = tvm_op.make_matrix_mul((m, k), False, (k, n), False, TGT, TGT_HOST, "matmul")
        out = _run(kernel, np.ones((m, k), "float32"), np.ones((k, n), "float32"))
        np.testing.assert_array_equal(out, np.zeros((m, n), "float32"))
    a, b = _draw(14, (13, 20), (20, 19))
    a[4, 3], b[7, 18] = np.nan, np.inf  # which touch their row and column only
    kernel = tvm_op.make_matrix_mul(a.shape, False, b.shape, False, TGT, TGT_HOST, "matmul")
    np.testing.assert_allclose(_run(kernel, a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_nan_in_gives_nan_out():
    x = np.array([[np.nan, 1, 2], [0, np.nan, np.inf], [1, 2, 3]], "float32")
    relu = tvm_op.make_relu(x.shape, TGT, TGT_HOST, "relu")
    np.testing.assert_array_equal(_run(relu, x), np.maximum(x, 0))
    softmax = tvm_op.make_matrix_softmax(x.shape, TGT, TGT_HOST, "softmax")
    np.testing.assert_array_equal(np.isnan(_run(softmax, x)), [[True] * 3, [True] * 3, [False] * 3])


def test_arrays_of_any_alignment_order_and_library():
    kernel = tvm_op.make_elemwise_add((1000,), TGT, TGT_HOST, "add")
    for offset in range(0, 68, 4):
        memory = np.zeros(4 * 1000 * 3 + 256, "uint8")
        a, b, out = (
            memory[start + offset : start + offset + 4000].view("float32") for start in (0, 4064, 8128)
        )
        a[:], b[:] = 1, np.arange(1000)
        a.flags.writeable = False
        kernel(a, b, out)
        np.testing.assert_array_equal(out, np.arange(1000) + 1)
    (x,), out = _draw(19, (20, 30)), np.empty((30, 20), "float32")
    tvm_op.make_relu((30, 20), TGT, TGT_HOST, "relu")(x.T, out)
    np.testing.assert_array_equal(out, np.maximum(x.T, 0))
    a, b = _draw(32, (64, 64), (64, 64))
    product = tvm_op.make_matrix_mul(a.shape, False, b.shape, False, TGT, TGT_HOST, "mm")
    out = tvm.runtime.empty((64, 64), "float32")
    with mock.patch.object(kernels.Kernel, "_tensor", side_effect=AssertionError):  # where each is looked at in Python
        product(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-5, atol=1e-5)


def test_a_kernel_that_fails_in_its_work_is_run_once() -> None:
    """Its own error is raised; an update in place is applied once."""
    for error in (RuntimeError, ValueError, TypeError, IndexError):
        kernel = tvm_op.make_sgd_update((4,), 0.5, TGT, TGT_HOST, "update")
        update = kernel.function

        def fails(*arrays, update=update, error=error):
            update(*arrays)
            raise error("behind the work")

        kernel.function = fails
        for x in (np.ones(4, "float32"), dl.array(np.ones(4, "float32")), tvm.runtime.tensor(np.ones(4, "float32"))):
            with pytest.raises(error, match="behind the work"):
                kernel(x, np.full(4, 2.0, "float32"), x)
            assert x.tolist() == [0.0] * 4 if isinstance(x, np.ndarray) else x.numpy().tolist() == [0.0] * 4
        kernel.function = update
        assert "shape" in error_of(ShapeError, kernel, np.ones(3, "float32"), x, x)


def _one_of_each():
    """A small kernel of each factory."""
    shape, make = (4, 6), tvm_op
    of_shape = ("elemwise_add", "elemwise_mul", "relu", "relu_gradient", "matrix_softmax")
    of_shape += ("matrix_softmax_cross_entropy", "reduce_sum_axis_zero")
    found = {name: getattr(make, f"make_{name}")(shape, TGT, TGT_HOST, name) for name in of_shape}
    for name in ("elemwise_add_by_const", "elemwise_mul_by_const", "sgd_update"):
        found[name] = getattr(make, f"make_{name}")(shape, 0.25, TGT, TGT_HOST, name)
    found["matrix_mul"] = make.make_matrix_mul((5, 5), False, (5, 5), True, TGT, TGT_HOST, "matrix_mul")
    found["conv2d"] = make.make_conv2d((1, 2, 5, 5), (2, 2, 1, 1), TGT, TGT_HOST, "conv2d")
    found["broadcast_to"] = make.make_broadcast_to((6,), shape, TGT, TGT_HOST, "broadcast_to")
    assert {f"make_{name}" for name in found} == {name for name in dir(make) if name.startswith("make_")}
    return found


IN_PLACE = ("elemwise_add", "elemwise_mul", "elemwise_add_by_const", "elemwise_mul_by_const", "relu")
IN_PLACE += ("relu_gradient", "sgd_update")
KINDS = {"NumPy": np.asarray, "dlsys": lambda x: to_array(x, dl.cpu()), "TVM": tvm_ffi.from_dlpack}  # of one memory


def test_memory_that_arguments_share_is_found_in_every_kernel():
    for (name, kernel), (kind, lend) in itertools.product(_one_of_each().items(), KINDS.items()):
        sizes = [int(np.prod(shape)) for shape, _ in (*kernel.inputs, *kernel.outputs)]
        given = _draw(31, *(shape for shape, _ in kernel.inputs))
        want, last = np.zeros(kernel.outputs[0][0], "float32"), sizes[-1]
        kernel(*given, want)
        for position, size in enumerate(sizes[:-1]):
            for offset in (-last, -last + 1, -1, 0, 1, size - 1, size):  # of the output from the input, in elements
                memory = np.zeros(last + size + last, "float32")
                shared, out = memory[last : last + size], memory[last + offset :][:last].reshape(want.shape)
                shared[:] = given[position].ravel()
                arrays = [lend(x) for x in given]
                arrays[position] = lend(shared.reshape(given[position].shape))
                before = memory.copy()
                if offset in (-last, size) or (offset == 0 and name in IN_PLACE):
                    kernel(*arrays, lend(out))
                    np.testing.assert_array_equal(out, want, f"{name} of {kind}")
                else:
                    message = error_of(KernelArgumentError, kernel, *arrays, lend(out))
                    assert f"the output shares memory with input {position}" in message, (name, kind, message)
                    assert ("may be one array" in message) == (name in IN_PLACE)
                    np.testing.assert_array_equal(memory, before)


def test_outputs_that_share_memory_are_refused():
    a, b = ad.Variable("a"), ad.Variable("b")
    fed = {a: np.ones((4, 5), "float32"), b: np.ones((4, 5), "float32")}
    executor = ad.Executor([a + b, a * b])
    executor.run(fed)
    (kernel,) = set(executor.node_to_compiled_func.values())
    memory = np.zeros(60, "float32")
    kernel(*fed.values(), memory[:20], memory[20:40])
    assert memory[:40].tolist() == [2] * 20 + [1] * 20
    for start in (0, 1, 19):
        message = error_of(KernelArgumentError, kernel, *fed.values(), memory[:20], memory[start : start + 20])
        assert "output 1 shares memory with output 0" in message
    assert "output 0 shares" in error_of(KernelArgumentError, kernel, *fed.values(), fed[a], memory[:20])


def test_elementwise_kernels_of_every_operator_may_overwrite_an_input():
    nodes, feed = every_case(of_each=1)
    executor = ad.Executor(nodes, passes=[])
    executor.infer_shape(feed)
    specs = [spec for spec in executor.latest_plan().specs.values() if spec.elementwise]
    assert len(specs) > 30
    for kernel in kernels.get(specs):
        (kind,) = kernel.outputs
        given = [_draw(i, shape, low=0.5)[0].astype(dtype) for i, (shape, dtype) in enumerate(kernel.inputs)]
        want = np.zeros(*kind)
        kernel(*given, want)
        for position, own in enumerate(kernel.inputs):
            if own == kind:
                arrays = [np.array(x) for x in given]
                kernel(*arrays, arrays[position])
                np.testing.assert_array_equal(arrays[position], want, repr(kernel))


def test_a_kernel_is_built_once():
    first = tvm_op.make_relu((17, 43), TGT, TGT_HOST, "first")
    count = kernels.built()
    again = tvm_op.make_relu((17, 43), TGT, TGT_HOST, "again")
    assert kernels.built() == count
    assert again.function is first.function
    assert (first.name, again.name) == ("first", "again")
    other = tvm_op.make_relu((17, 43), TGT, TGT_HOST, "first", "float64")
    assert other.function is not first.function


def test_a_kernel_prints_itself():
    kernel = tvm_op.make_matrix_mul((64, 64), False, (64, 64), False, TGT, TGT_HOST, "mm")
    assert (
        repr(kernel) == "<kernel mm(float32[64, 64], float32[64, 64]) -> float32[64, 64], contraction, llvm>"
    )
    assert "T.vectorized" in kernel.script()
    assert "fma" in kernel.source("asm") or "fmla" in kernel.source("asm")
    assert "define" in kernel.source("ll")
    assert "asm" in error_of(KernelArgumentError, kernel.source, "elf")


def test_an_output_whose_elements_are_not_aligned_is_refused_and_inputs_are_copied():
    for kernel in _one_of_each().values():
        given = _draw(33, *(shape for shape, _ in kernel.inputs))
        odd = [np.zeros(x.nbytes + 1, "u1")[1:].view("f4").reshape(x.shape) for x in given]
        for value, same in zip(odd, given, strict=True):
            value[...] = same
        shape = kernel.outputs[0][0]
        want, out, unaligned = np.zeros(shape, "f4"), np.zeros(shape, "f4"), np.zeros(4 * math.prod(shape) + 1, "u1")
        kernel(*given, want), kernel(*odd, out)
        np.testing.assert_array_equal(out, want)
        packed = np.zeros(shape, np.dtype([("flag", "u1"), ("value", "<f4")]))["value"]  # a field of packed records
        told = error_of(KernelArgumentError, kernel, *given, unaligned[1:].view("f4").reshape(shape))
        assert "multiple of its element" in told
        error_of(KernelArgumentError, kernel, *given, packed)
