"""Data parallel: two processes that average their gradients train as one does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py", exc_type=ImportError)
MPIRUN = shutil.which("mpirun") or pytest.skip("mpirun is not installed", allow_module_level=True)
DEMO = Path(__file__).parents[2] / "demos" / "train_data_parallel.py"


def run(ranks, *flags):
    env = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [MPIRUN, "-n", str(ranks), sys.executable, str(DEMO), *flags]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def losses(ranks):
    done = run(ranks, "--steps", "20")
    assert done.returncode == 0, done.stderr
    return np.loadtxt(done.stdout.splitlines())[:, 1]


def test_two_ranks_give_the_losses_of_one_with_the_joint_batch():
    one, two = losses(1), losses(2)
    assert len(one) == 20 and one[-1] < one[0] - 0.5
    assert np.abs(one - two).max() < 1e-6


def test_a_batch_that_cannot_be_shared_is_refused():
    refused = run(2, "--batch-size", "5")
    assert refused.returncode != 0 and "--batch-size 5 can't be shared equally by 2 processes" in refused.stderr
