"""The machine's measured peaks."""

from __future__ import annotations

import dlsys as dl
import numpy as np
import pytest
import tvm
from dlsys.kernels import peak
from dlsys.schedule.target import host_target


def test_peak_kernels_compute_what_they_count():
    threads, lanes = 2, 8
    x = dl.array(np.stack([np.full(lanes, 0.5), np.ones(lanes)]).astype("float32"))
    out = dl.zeros((threads, 3 * lanes))
    tvm.compile(peak.fma_kernel(3, lanes, threads), target=host_target())["fma"](x.tensor, out.tensor)
    assert np.array_equal(out.numpy(), np.full((threads, 3 * lanes), 2, "float32"))
    b, c, a = (dl.array(np.random.rand(43).astype("float32")) for _ in range(3))
    peak.triad_kernel(43)(b, c, a)
    assert np.allclose(a.numpy(), 0.5 * b.numpy() + c.numpy(), rtol=1e-6)


@pytest.mark.slow
def test_peaks_are_measured_once():
    for measure in (peak.fma_peak, peak.memory_bandwidth):
        assert 0 < measure(1) == measure(1) < float("inf")
