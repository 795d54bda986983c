"""The agent: the predecoder as the loops and the sampler see it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoqec.decoders.base import Predecoder

# Work in one pass through the net: bounds memory whatever batch is asked for, and keeps activations near the cache
# (measured: graph nets run up to twice as fast as in passes of 1e9, dense nets no slower).
FLOPS_PER_PASS = 100_000_000
# A pass reads every weight and starts every operation, so it needs shots enough to share that among. CPU time of a
# batch of 512, d=7 hard_flip (dense, 4.1M weights): 581 ms in passes of 12 shots, 203 ms of 128, 168 ms of 256; of a
# shot, d=7 conv of 59 MFLOP: 9.1 ms in passes of one, 3.0 ms of eight, 3.3 ms of 64.
MIN_WEIGHT_REUSE, MIN_SHOTS_PER_PASS, MAX_SHOTS_PER_PASS = 512, 8, 4096


class PredecoderAgent:
    """Wraps a predecoder: modes, passes of bounded memory, device, state.

    flops_per_syndrome: forward cost of one shot; it sets how many shots go through the net at once.
    """

    def __init__(self, model: Predecoder, flops_per_syndrome: int) -> None:
        self.model = model
        self.output_mode = model.output_mode
        self.device = torch.device("cpu")
        weights = sum(value.numel() for value in model.parameters())
        shots = math.ceil(max(FLOPS_PER_PASS, MIN_WEIGHT_REUSE * weights) / max(flops_per_syndrome, 1))
        self.shots_per_pass = min(MAX_SHOTS_PER_PASS, max(MIN_SHOTS_PER_PASS, shots))
        self.is_data_parallel = False

    def to_device(self, device: str) -> None:
        self.device = torch.device(device)
        self.model.to(self.device)

    def data_parallel(self) -> None:
        """From now on every step takes the mean gradient of all ranks; see `broadcast` and `average`."""
        self.is_data_parallel = True

    def broadcast(self) -> None:
        """Rank 0's weights and buffers, on every rank."""
        with torch.no_grad():
            for value in self.model.state_dict().values():
                dist.broadcast(value, src=0)

    def all_reduce_mean(
        self, parameters: list[nn.Parameter] | list[Tensor], figures: dict[str, float]
    ) -> dict[str, float]:
        """Gradients of `parameters`, running statistics and `figures` become their mean over all ranks.

        Once a step, however many passes a batch took; figures are the same on every rank, so that all see a loss
        that is not finite. Without other ranks nothing happens.
        """
        if not self.is_data_parallel:
            return figures
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            running = [value for value in self.model.buffers() if value.is_floating_point() and value.numel()]
            parts = [parameter.grad for parameter in parameters if parameter.grad is not None] + running
            parts.append(torch.tensor(list(figures.values()), device=self.device))
            flat = torch.cat([part.reshape(-1) for part in parts])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for part, mean in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
                part.copy_(mean.view_as(part))
        return dict(zip(figures, parts[-1].tolist(), strict=True))

    def train_mode(self, itr: int) -> None:
        self.model.train()

    def sample_mode(self, itr: int) -> None:
        self.model.eval()

    def eval_mode(self, itr: int) -> None:
        self.model.eval()

    def parts(self, n: int) -> Iterator[slice]:
        """Slices of 0..n, each small enough for one pass, and none much smaller than the others."""
        size = math.ceil(n / max(1, math.ceil(n / self.shots_per_pass)))
        for start in range(0, n, max(1, size)):
            yield slice(start, min(start + size, n))

    def __call__(self, detections: np.ndarray) -> Tensor:
        """uint8 [n, n_detectors] -> log-odds [n, n_edges] with gradients, in one pass."""
        log_odds: Tensor = self.model(torch.from_numpy(detections).to(self.device, torch.float32))
        return log_odds

    def infer(self, detections: np.ndarray) -> np.ndarray:
        """uint8 [n, n_detectors] -> float32 [n, n_edges], without gradients, in passes of bounded memory."""
        with torch.no_grad():
            return np.concatenate([self(detections[part]).cpu().numpy() for part in self.parts(len(detections))])

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """A copy: later training leaves it alone."""
        return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)
