"""Contexts, arrays, sharing of memory with NumPy and PyTorch, threads, kernels that run in parallel."""

from __future__ import annotations

import gc
import weakref

import dlsys as dl
import numpy as np
import pytest
import tvm
from dlsys import devices, nn
from dlsys.devices import to_array, to_tensor
from helpers import error_of
from optional import torch


def test_contexts_and_devices() -> None:
    assert dl.cpu() == dl.cpu(0) != dl.cuda(0) == dl.gpu(0) != dl.gpu(1)
    assert repr(dl.gpu(1)) == "cuda(1)" and repr(dl.numpy()) == "numpy()"
    for value in (None, dl.cpu(0), tvm.cpu(0), "cpu", "cpu:0"):
        assert dl.context(value) == dl.cpu(0), value
    assert dl.context("numpy") == dl.numpy()
    cpu, gpu = dl.device("cpu"), dl.device("cuda:1")
    assert (cpu.type, cpu.index, str(cpu)) == ("cpu", 0, "cpu") and cpu == dl.cpu() != gpu
    assert (gpu.type, gpu.index, str(gpu)) == ("cuda", 1, "cuda:1") and hash(gpu) == hash(dl.cuda(1))
    for same in (dl.device("cuda", 1), dl.device("gpu", index=1), dl.device("gpu(1)"), dl.device(1), dl.cuda(1)):
        assert same == gpu
    assert f"{dl.device('cuda')} {dl.device('gpu')!r} {dl.device('numpy')}" == "cuda:0 cuda(0) numpy"
    for named in ("cuda:0", "cuda:1", "gpu(1)", dl.cuda(1), 1):  # an index is given once
        for index in (0, 1, 2):
            assert f"but {index} is" in error_of(dl.DeviceError, dl.device, named, index)
    for wrong in ("tpu", "cpu:x", "cuda:1)", "cuda(1", "cuda:(1)", "cuda()", "cuda:", ""):
        for function in (dl.device, dl.context):
            assert repr(wrong) in error_of(dl.DeviceError, function, wrong)
    for wrong in (None, 1.5, -1):
        assert "device" in error_of(dl.DeviceError, dl.device, wrong)
    assert ">= 0" in error_of(dl.DeviceError, dl.cpu, -1) and "integer" in error_of(dl.DeviceError, dl.gpu, "0")


def test_tensors_and_modules_move_to_devices() -> None:
    device = dl.device("cuda" if dl.cuda.is_available() else "cpu")
    x = dl.ones(2, 3)
    assert x.to(device).device == device and isinstance(x.device, dl.device)
    assert dl.zeros(2, device=device).device == device and nn.Linear(2, 2).to(device).weight.device == device


def test_an_absent_gpu_is_one_sentence() -> None:
    found = dl.cuda.device_count()
    assert dl.cuda.is_available() == (found > 0) == dl.gpu.is_available()
    assert [dl.cuda(i).require() for i in range(found)] == [dl.cuda(i) for i in range(found)]
    absent = dl.cuda(1000)  # to name it is no error
    for make in (lambda: dl.array([1.0], absent), lambda: devices.empty(3, ctx=absent), lambda: dl.context("gpu:1000")):
        message = error_of(dl.DeviceError, make)
        assert message.startswith("cuda(1000) is not available") and "dlsys.cpu()" in message and "\n" not in message


def test_arrays_have_numpys_manners() -> None:
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    a = dl.array(source)
    assert (a.shape, a.dtype, a.ndim, a.size, a.nbytes, len(a)) == ((2, 3), "float32", 2, 6, 24, 2)
    assert repr(a) == "Array(shape=(2, 3), dtype=float32, cpu(0))" and a.context == dl.cpu()
    source[0, 0] = 9
    assert a.numpy()[0, 0] == 0
    assert a.numpy() is not a.numpy() and np.asarray(a)[1, 2] == 5
    np.asarray(a)[1, 2] = 7  # the same memory
    assert a[1, 2] == 7 and a[1].tolist() == [3, 4, 7]
    a[:] = 1.5
    a[0] = [1, 2, 3]
    assert a.asnumpy().tolist() == [[1, 2, 3], [1.5, 1.5, 1.5]]
    assert float(dl.array(2.5)) == 2.5 and np.asarray(a, "float64").dtype == np.float64
    assert np.from_dlpack(a).shape == (2, 3)
    b = dl.zeros((2, 3), "float64")
    a.copyto(b)
    assert b.dtype == "float64" and b[0].tolist() == [1, 2, 3]
    assert "shape (3, 2)" in error_of(dl.ShapeError, b.copyfrom, np.zeros((3, 2)))
    assert "length" in error_of(TypeError, len, dl.array(1.0))
    assert "one element" in error_of(TypeError, float, a)
    tvm.runtime.tensor(np.ones((2, 3), "float32")).copyto(to_tensor(a))
    assert a[0].tolist() == [1, 1, 1]


def test_dtypes_of_new_arrays() -> None:
    assert dl.array([1.0, 2.0]).dtype == dl.array(1.0).dtype == dl.empty(2).dtype == "float32"
    for dtype in ("float64", "float32", "int64", "int8", "bool"):
        assert dl.array(np.ones(3, dtype)).dtype == dtype
    assert dl.array(np.float64(1)).dtype == "float64" and dl.array([1.0], dtype="float64").dtype == "float64"
    assert dl.array(np.ones(2, ">f4")).dtype == "float32"
    assert isinstance(dl.array([1.0], dl.numpy()), np.ndarray)
    assert dl.zeros((0, 3)).numpy().shape == (0, 3) and dl.zeros(()).numpy() == 0
    assert "dtype float33 is not one of" in error_of(dl.DTypeError, dl.empty, 3, "float33")
    assert "negative" in error_of(dl.ShapeError, dl.empty, (-1, 3))
    assert "tuple of integers" in error_of(dl.ShapeError, dl.empty, "abc")
    assert "cannot allocate" in error_of(dl.DeviceError, dl.empty, (10**15,))


def shares(value: np.ndarray) -> bool:
    return np.may_share_memory(np.asarray(to_array(value, dl.cpu())), value)


def test_memory_is_shared_where_it_can_be() -> None:
    aligned = np.zeros((4, 5), np.float32)
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    for value in (aligned, aligned[1:], aligned.reshape(-1)[1:3], read_only, np.zeros((), "float64")):
        assert shares(value)
    odd = np.frombuffer(b"x" + bytes(16), np.float32, offset=1)
    for value in (aligned.T, aligned[:, ::2], odd, np.arange(3, dtype=">f8")):
        array = to_array(value, dl.cpu())
        assert not shares(value) and np.array_equal(array.numpy(), value)
        assert np.asarray(array).flags.aligned
    tensor = tvm.runtime.tensor(np.arange(32, dtype=np.float32))
    offset = tensor._create_view((4,), "float32", 64)  # kernels refuse its byte offset
    assert to_array(offset, dl.cpu()).numpy().tolist() == [16, 17, 18, 19]
    assert to_array(2, dl.cpu()).dtype == to_array([1, 2], dl.cpu()).dtype == "float32"


def test_what_is_no_array_of_numbers() -> None:
    for value in (np.zeros(2, "complex64"), np.array(["a"]), object(), "abc", None, np.zeros(1, "M8[s]")):
        assert "not an array of numbers" in error_of(dl.DTypeError, to_array, value, dl.cpu()), value
    assert "rectangular" in error_of(dl.DTypeError, to_array, [[1], [1, 2]], dl.cpu())
    assert "more than 64 bits, -1180" in error_of(dl.DTypeError, to_array, [[1], [-(2**70)]], dl.cpu())


def test_pytorch_tensors() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    array = to_array(tensor, dl.cpu())
    tensor[0, 0] = 5
    assert array[0, 0] == 5
    assert to_array(tensor.T, dl.cpu()).numpy().tolist() == tensor.T.tolist()
    assert "detach" in error_of(dl.DTypeError, to_array, torch.ones(2, requires_grad=True), dl.cpu())


def test_allocations_are_counted_and_large_arrays_begin_at_a_cache_line() -> None:
    before = devices.allocation_count()
    dl.empty(3)
    to_array(np.ones(3), dl.cpu())
    assert devices.allocation_count() == before + 1
    for shape, dtype in (((1 << 20,), "float32"), ((1025, 1024), "float32"), ((600, 1000), "float64")):
        made = dl.empty(shape, dtype)  # on pages of 2 MiB, where Linux has them, which are NumPy's to ask for
        assert made.tensor.data_ptr() % 64 == 0 and (made.shape, made.dtype) == (shape, dtype)
        made[...] = 1
        assert np.asarray(made).all() and made.numpy().dtype == dtype


def test_threads() -> None:
    at_start = dl.get_num_threads()
    try:
        dl.set_num_threads(1)
        assert dl.get_num_threads() == 1
        for wrong in (0, -1, 10**6, 1.5, "2", True):
            message = error_of(ValueError, dl.set_num_threads, wrong)
            assert "TVM_NUM_THREADS" in message and repr(wrong) in message
            error_of(dl.DlsysError, dl.set_num_threads, wrong)
    finally:
        dl.set_num_threads(at_start)
    assert dl.get_num_threads() == at_start


def test_arrays_have_arithmetic_on_their_device() -> None:
    """`W - lr * grad` of what `run` returned is the course's update."""
    w, g = (np.random.default_rng(i).standard_normal((3, 4)).astype("float32") for i in range(2))
    a, b = dl.array(w), dl.array(g)
    for found, want in (
        (a - 0.1 * b, w - np.float32(0.1) * g),
        (a + g, w + g),
        (2 - a, 2 - w),
        (a / b[0], w / g[0]),
        (-a * a, -w * w),
        (a**2, w**2),
        (a @ dl.array(g.T), w @ g.T),
        (1 / (a * a + 1), 1 / (w * w + 1)),
        (dl.array(np.arange(3)) + 1, np.arange(3) + 1),
        (dl.array(np.arange(3)) * 0.5, np.arange(3, dtype="float32") / 2),
        (a + np.float64(1.0), w + 1),
        (a + dl.array(1.0), w + 1),
    ):
        assert isinstance(found, dl.Array) and found.context == dl.cpu() and found.dtype == str(want.dtype)
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-5, atol=1e-6)
    assert a.numpy().tolist() == w.tolist()  # a new array each time
    assert "(3, 4)" in error_of(dl.ShapeError, lambda: a + dl.array(np.zeros(3, "float32")))
    assert "unsupported" in error_of(TypeError, lambda: a + "1")
    assert "int16" in error_of(dl.DTypeError, lambda: a + np.zeros(4, "int16"))
    assert isinstance(a + dl.tensor(g), dl.Tensor)


@pytest.mark.slow
def test_numbers_take_the_dtype_of_the_array_beside_them() -> None:
    """As beside a tensor: a float64 array times 0.1 is not rounded to float32."""
    for dtype, shape in (("float32", (3,)), ("float64", ()), ("int64", (3,)), ("uint8", ()), ("bool", (3,))):
        array, tensor = dl.array(np.ones(shape, dtype)), dl.tensor(np.ones(shape, dtype))
        for number in (2, 0.1, np.float64(0.1), np.array(0.7), np.uint8(3), True):
            found = array * number
            assert (found.dtype, found.shape) == ((tensor * number).dtype, shape), (dtype, number)
            assert (found.numpy() == np.asarray(number).astype(found.dtype)).all()
        want = -np.ones(shape, "int64" if dtype == "bool" else dtype)
        assert (-array).dtype == want.dtype and (-array).numpy().tolist() == want.tolist()
        assert (0.1 / array).dtype == (0.1 / tensor).dtype and (array - 1).dtype == (tensor - 1).dtype
    for number in (300, -1, 2**70):
        assert "is no uint8" in error_of(dl.DTypeError, lambda n=number: dl.array(np.ones(2, "uint8")) + n)


@pytest.mark.usefixtures("young")
def test_array_arithmetic_holds_no_operand_and_gives_another_array() -> None:
    for n in (*range(1, 9), 8, 1, 2):
        a = dl.array(np.arange(n, dtype="float32"))
        assert (a + a).numpy().tolist() == [2 * i for i in range(n)]
    fed = weakref.ref(a)
    del a
    gc.collect()
    assert fed() is None
    a = dl.array(np.arange(3))
    (b := a**1)[0] = 7
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([0, 1, 2], [7, 1, 2])
