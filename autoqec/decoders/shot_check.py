"""Comparison of shots with the model that they are about to be decoded with."""

from __future__ import annotations

import numpy as np

from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.windows import WindowedDecoder
from autoqec.qec.diagnosis import Diagnosis, EventModel, diagnose_first_shots


def check_shots(decoder: CheckpointDecoder | WindowedDecoder, detection_events: np.ndarray) -> list[Diagnosis] | None:
    """Tell from the first shots whether they are of a decoder's model; see `diagnose_first_shots`.

    Args:
        decoder: What decodes them.
        detection_events: Bit-packed, uint8 [n, ceil(n_detectors / 8)].
    """

    def model() -> EventModel:
        return decoder.event_model() if isinstance(decoder, WindowedDecoder) else EventModel.of_first(decoder.problem)

    return diagnose_first_shots(model, detection_events)
