"""Orders of OSD and LSD above n - rank(H), for which ldpc 2.4.1 writes outside its buffers."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from ldpc.mod2 import rank

from autoqec.contracts.env import BpSettings
from autoqec.qec.bp import MAX_LSD_ORDER, PostProcessing, make_ldpc, safe_order
from autoqec.qec.graph import TannerGraph

STAGES: tuple[PostProcessing, ...] = ("bposd", "bplsd")


def small_code() -> TannerGraph:
    """Six independent checks on twelve mechanisms: n - rank(H) = 6."""
    rng = np.random.default_rng(0)
    matrix = sp.csc_matrix(np.hstack([np.eye(6, dtype=np.uint8), (rng.random((6, 6)) < 0.5).astype(np.uint8)]))
    assert rank(sp.csr_matrix(matrix)) == 6
    return TannerGraph(
        observables=np.ones((12, 1), np.uint8),
        prior=np.full(12, 0.1),
        mechanism_to_edge=sp.identity(12, dtype=np.int32, format="csr"),
        in_sector=np.arange(6),
        out_of_sector=np.arange(0),
        check_matrix=matrix,
    )


def answers(stage: PostProcessing, order: int) -> np.ndarray:
    syndromes = np.unpackbits(np.arange(64, dtype=np.uint8)[:, None], axis=1)[:, 2:]
    decoder = make_ldpc(small_code(), stage, BpSettings(iterations=1, order=order))
    return np.array([decoder.decode(syndrome) for syndrome in syndromes])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("order", [40, 60])
def test_order_is_clamped_to_redundancy_with_a_warning(
    stage: PostProcessing, order: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert safe_order(small_code().check_matrix, stage, order) == 6
    assert f"{stage}: order {order} exceeds" in caplog.text


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("order", [40, 60])
def test_large_order_decodes_like_the_clamped_order(stage: PostProcessing, order: int) -> None:
    """Runs in a subprocess: without the clamp the heap is corrupted and the process aborts."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        "import numpy as np\n"
        "from tests.unit.qec.test_bp_order import answers\n"
        f"assert np.array_equal(answers({stage!r}, {order}), answers({stage!r}, 6))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_dependent_checks_count_once() -> None:
    repeated = sp.vstack([small_code().check_matrix] * 3).tocsc()
    assert safe_order(repeated, "bposd", 60) == 6


@pytest.mark.parametrize(("stage", "order"), [("bposd", 60), ("bplsd", MAX_LSD_ORDER)])
def test_order_within_redundancy_is_kept(stage: PostProcessing, order: int, caplog: pytest.LogCaptureFixture) -> None:
    wide = sp.csc_matrix(np.ones((1, 100), np.uint8))
    assert safe_order(wide, stage, order) == order
    assert not caplog.records


def test_lsd_order_stays_within_the_smallest_cluster_buffer() -> None:
    """A cluster of three columns and one check, in a code whose redundancy is large."""
    assert safe_order(sp.csc_matrix(np.ones((1, 100), np.uint8)), "bplsd", 60) == MAX_LSD_ORDER
