"""The command line: `python -m dlsys info`, and wrong requests."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import dlsys as dl
import numpy as np
import pytest
import tvm
from dlsys.cli import info, main
from dlsys.schedule.target import described, host_target, resolve_target
from helpers import python

context = sys.modules["dlsys.devices.context"]  # the module: `dlsys.devices.context` is the function

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the program, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: Any = main(list(arguments))
        except SystemExit as exit_:
            status = exit_.code
    return status, out.getvalue(), err.getvalue()


def test_info_is_text_and_json(folder: Path) -> None:
    plans, data = folder / "compiled", folder / "data" / "set"
    for file, size in ((plans / "a.so", 1000), (plans / "b.so", 2000), (data / "images", 3 * 1024)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    with mock.patch.dict(os.environ, {"DLSYS_CACHE": str(folder)}):
        os.environ.pop("DLSYS_COMPILE_CACHE", None)
        status, out, err = call("info", "--json")
        text = call("info")[1]
    assert (status, err) == (0, "")
    facts = json.loads(out)
    assert facts["dlsys"] == dl.__version__ and facts["NumPy"] == np.__version__ and facts["TVM"] == tvm.__version__
    assert facts["target"] == f"llvm, mcpu {described(host_target())}"
    assert facts["threads"].startswith(f"{dl.get_num_threads()} of ")
    assert facts["compiled kernels"] == f"{plans}: 2 files, 2.9 KiB"
    assert facts["data"] == f"{data.parent}: 1 file, 3.0 KiB"
    assert dict(re.split(r"  +", line, maxsplit=1) for line in text.splitlines()) == facts
    with mock.patch.dict(os.environ, {"DLSYS_COMPILE_CACHE": "0"}):
        assert info.facts()["compiled kernels"] == "not stored"


def test_info_says_what_cuda_lacks_and_features_that_the_schedules_see() -> None:
    assert info.facts()["CUDA"].startswith("none") != bool(tvm.runtime.enabled("cuda") and tvm.cuda(0).exist)
    told = {context.EXISTS: 1, context.NAME: "NVIDIA H200", context.COMPUTE_VERSION: "9.0"}
    one = mock.patch.object(context.Cuda, "attribute", lambda self, index, which: told[which] if index < 1 else 0)
    with one, mock.patch.object(context.Cuda, "lacking", lambda self: ""):
        assert info.facts()["CUDA"].startswith("NVIDIA H200 (compute 9.0); nvidia-cuda-nvrtc")
    third, fifth = (info.cpu_features(str(resolve_target({"kind": "llvm", "mcpu": f"znver{i}"}))) for i in (3, 5))
    assert {"avx2", "fma"} <= {*third} and "avx512f" not in third
    assert {"avx512f", "avx512vl"} <= {*fifth}


def test_wrong_requests_are_one_sentence() -> None:
    for arguments, words in (
        (("climb",), "invalid choice: 'climb'"),
        (("info", "--yaml"), "unrecognized arguments: --yaml"),
    ):
        status, out, err = call(*arguments)
        assert (status, out) == (2, ""), (arguments, status, err)
        assert words in err and err.count("\n") == 1 and err.startswith("python -m dlsys"), err
    with mock.patch.object(info, "facts", side_effect=KeyboardInterrupt):
        assert call("info") == (130, "", "Interrupted.\n")


@pytest.mark.slow
def test_python_m_dlsys_helps_without_a_command() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    done = python("-m", "dlsys", PYTHONPATH=path)
    assert done.stderr == "" and done.stdout.startswith("usage: python -m dlsys")
    assert all(name in done.stdout for name in ("info", "tracker", "worker"))
