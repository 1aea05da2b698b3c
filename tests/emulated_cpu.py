"""The smallest kernels on a CPU that an emulator stands for, whose features are not all that its name implies:
`qemu-x86_64 -cpu Skylake-Server python tests/emulated_cpu.py`. An instruction that it lacks ends the process."""

from __future__ import annotations

import numpy as np
from dlsys import tvm_op
from dlsys.devices import host_machine
from dlsys.schedule import host_target, machine_of
from dlsys.schedule.target import described


def main() -> None:
    """Runs a product and a relu of odd sizes, compares them with NumPy and prints the CPU. Raises AssertionError."""
    random = np.random.default_rng(0)
    a, b = (random.normal(size=shape).astype("float32") for shape in ((20, 31), (31, 45)))
    product, positive = np.empty((20, 45), "float32"), np.empty((20, 45), "float32")
    tvm_op.make_matrix_mul(a.shape, False, b.shape, False, "llvm", "llvm", "matmul")(a, b, product)
    tvm_op.make_relu(product.shape, "llvm", "llvm", "relu")(product, positive)
    np.testing.assert_allclose(product, a @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(positive, np.maximum(product, 0))
    assert host_machine() == machine_of(host_target()), "the CPU's flags and the compiler say the same"
    print(f"{described(host_target())}: vectors of {machine_of(host_target()).vector_bits} bits, right")


if __name__ == "__main__":
    main()
