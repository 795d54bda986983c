"""Reading binary check matrices from files of other tools."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from autoqec.errors import UsageError

MATRIX_SUFFIXES = (".npy", ".npz", ".mtx", ".txt")


def read_matrix(path: Path) -> np.ndarray:
    """Read a matrix of 0s and 1s: .npy, .npz (sparse, of scipy), .mtx (Matrix Market), or rows of text.

    Pickled arrays are refused, because loading them could run code.

    Returns:
        uint8 [rows, columns].

    Raises:
        UsageError: The file cannot be read or holds no such matrix.
    """
    hint = f"write 0s and 1s as {', '.join(MATRIX_SUFFIXES)}"
    try:
        matrix = _read(path)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", location=str(path), hint=hint) from error
    except (ValueError, KeyError, EOFError, TypeError, MemoryError, zipfile.BadZipFile) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"cannot be read as a matrix ({reason})", location=str(path), hint=hint) from error
    if matrix.ndim != 2 or not matrix.size or not np.isin(matrix, (0, 1)).all():
        raise UsageError(f"is not a matrix of 0s and 1s (shape {matrix.shape})", location=str(path), hint=hint)
    return matrix.astype(np.uint8)


def _read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.asarray(np.load(path, allow_pickle=False))
    if path.suffix == ".npz":
        return np.asarray(sp.load_npz(path).toarray())
    if path.suffix == ".mtx":
        from scipy.io import mmread

        matrix = mmread(path)
        return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix)
    rows = [line.split("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    parts = [row.replace(",", " ").split() for row in rows if row.strip()]
    digits = [list(part[0]) if len(part) == 1 else part for part in parts]
    return np.array([[int(digit) for digit in row] for row in digits])


def css_text(matrices: dict[str, np.ndarray]) -> str:
    """Format hx, hz and optionally lx, lz as the text of a `css_file`, rows of digits."""
    out = ""
    for name, matrix in matrices.items():
        out += f"{name}:\n" + "".join(f'  - "{"".join(map(str, row))}"\n' for row in matrix.tolist())
    return out
