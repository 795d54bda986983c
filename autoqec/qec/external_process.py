"""The process of one external decoder: `python -m autoqec.qec.external_process`, started inside the sandbox.

Messages in both directions: a header (uint8 tag, uint64 length, little-endian) and a payload. The first request is JSON
with the decoder and the detector error model; each further one is bit-packed detection events, uint8
[n, ceil(n_detectors / 8)]. An answer is empty for the first request, else bit-packed predictions, uint8
[n, ceil(n_observables / 8)]; with tag `FAILED` it is a message in UTF-8.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import struct
import sys
from typing import Any, BinaryIO

import numpy as np

HEADER = struct.Struct("<BQ")
DONE, FAILED = 0, 1


def main() -> None:
    """Answer requests from stdin until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the decoder prints goes to the log
    requests = sys.stdin.buffer
    compiled, n_detectors = None, 0
    while (payload := receive(requests)) is not None:
        try:
            if compiled is None:
                compiled, n_detectors = load(json.loads(payload))
                answer = b""
            else:
                shots = np.frombuffer(payload, np.uint8).reshape(-1, -(-n_detectors // 8))
                packed = compiled.decode_shots_bit_packed(bit_packed_detection_event_data=shots)
                answer = np.ascontiguousarray(packed, np.uint8).tobytes()
            send(answers, DONE, answer)
        except Exception as error:  # third-party code may raise anything
            send(answers, FAILED, f"{type(error).__name__}: {error}"[:500].encode(errors="replace"))


def load(request: dict[str, Any]) -> tuple[Any, int]:
    """Import the decoder's module and compile the decoder for the model of the request, if there is one."""
    import stim

    listed = call_function(request["module"], request["function"], request["origin"], request["locations"])
    decoder = listed[request["decoder"]]
    if request["dem"] is None:
        return decoder, 0
    dem = stim.DetectorErrorModel(request["dem"])
    try:
        return decoder.compile_decoder_for_dem(dem=dem), dem.num_detectors
    except Exception as error:
        raise ValueError(f"does not take this problem ({type(error).__name__}: {error})") from error


def call_function(module_name: str, function: str, origin: str, locations: list[str] | None) -> Any:
    """Call a function of a module without arguments.

    Args:
        module_name: Dotted name of the module.
        function: Name of the function.
        origin: File of the top-level package or module; it need not be on the search path.
        locations: Directories of its submodules; None for a module.
    """
    top = module_name.partition(".")[0]
    if top not in sys.modules:
        spec = importlib.util.spec_from_file_location(top, origin, submodule_search_locations=locations)
        if spec is None or spec.loader is None:
            raise ImportError(f"{origin} is not a Python module")
        sys.modules[top] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return getattr(importlib.import_module(module_name), function)()


def receive(requests: BinaryIO) -> bytes | None:
    """Return the payload of the next request; None at the end of the stream."""
    header = requests.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    _, length = HEADER.unpack(header)
    return requests.read(length)


def send(answers: BinaryIO, tag: int, payload: bytes) -> None:
    """Write one answer with its header."""
    answers.write(HEADER.pack(tag, len(payload)) + payload)
    answers.flush()


if __name__ == "__main__":
    main()
