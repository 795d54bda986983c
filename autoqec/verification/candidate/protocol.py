"""Messages between verifier and candidate process: tagged, length-prefixed byte strings over two pipes.

verifier -> candidate   SPEC  JSON {env_text, member, checkpoint, dsl_config, modules_dir, whole_decoder}
                        GOON  empty: import the editable modules and load the checkpoint
                        DATA  packed detection events, uint8 [n, ceil(n_detectors / 8)], row-major
                        TIME  the same: decode them one by one with the whole decoder; only without branch code
candidate -> verifier   REDY  empty: trusted code is imported and the env's problem is built; no branch code ran yet
                        MADE  JSON {circuit_sha256, dsl_sha256, n_params, flops_per_syndrome}
                        ODDS  log-odds at the env's target p, float32 [n, n_edges], row-major, little-endian
                        TIMS  elapsed times in us, float64 [k], and predictions, uint8 [k, n_observables], of k shots
                        FAIL  JSON {error, what, where, hint}: this request failed; later ones may succeed
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<4sQ")
SPEC, GO, DATA, TIME = b"SPEC", b"GOON", b"DATA", b"TIME"
READY, MODEL_INFO, LOG_ODDS, TIMES, ERROR = b"REDY", b"MADE", b"ODDS", b"TIMS", b"FAIL"
MAX_REPLY_TEXT = 2**16  # bytes of MADE and FAIL
BATCH = 1_024  # shots per forward pass; bounds memory
LATENCY_LIMIT_S = 20.0  # for all single shots together


def pack(tag: bytes, payload: bytes) -> bytes:
    """Return one message: header, then payload."""
    return HEADER.pack(tag, len(payload)) + payload
