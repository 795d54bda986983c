"""What judge and candidate say to each other: tagged, length-prefixed byte strings over two pipes.

judge -> candidate   SPEC  JSON {env_text, checkpoint, dsl_config, modules_dir}
                     DATA  packed detection events, uint8 [n, ceil(n_detectors / 8)], row-major
candidate -> judge   MADE  JSON {circuit_sha256, dsl_sha256, n_params, flops_per_syndrome}
                     ODDS  log-odds at the env's target p, float32 [n, n_edges], row-major, little-endian
                     FAIL  JSON {error, what, where, hint}: this request failed, the next may not
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<4sQ")
SPEC, DATA, MODEL_INFO, LOG_ODDS, ERROR = b"SPEC", b"DATA", b"MADE", b"ODDS", b"FAIL"
MAX_TEXT = 16 * 2**20  # bytes of SPEC
MAX_REPLY_TEXT = 2**16  # bytes of MADE and FAIL


def pack(tag: bytes, payload: bytes) -> bytes:
    return HEADER.pack(tag, len(payload)) + payload
