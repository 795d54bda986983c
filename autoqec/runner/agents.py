"""Agents: models as loops, samplers and algorithms use them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoqec.decoders.base import Predecoder
from autoqec.runner.round_memory import MIN_SHOTS_PER_PASS

# Flops of one pass through the network: bounds memory for any batch size and keeps activations near the cache
# (measured: graph networks run up to twice as fast as in passes of 1e9, dense networks no slower).
FLOPS_PER_PASS = 100_000_000
# A pass reads every weight and starts every operation, which enough shots must amortize. CPU time of a batch of 512,
# d=7 hard_flip (dense, 4.1M weights): 581 ms in passes of 12 shots, 203 ms of 128, 168 ms of 256; per shot, d=7 conv
# of 59 MFLOP: 9.1 ms in passes of one shot, 3.0 ms of eight, 3.3 ms of 64.
MIN_WEIGHT_REUSE, MAX_SHOTS_PER_PASS = 512, 4096  # and MIN_SHOTS_PER_PASS


class Agent:
    """A model that is trained: modes, device, averaging over ranks and state.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.device = torch.device("cpu")
        self.is_data_parallel = False

    def parts(self, n: int) -> Iterator[slice]:
        """Yield slices of range(n) that go through the model one after the other."""
        yield slice(0, n)

    def to_device(self, device: str) -> None:
        """Move the model."""
        self.device = torch.device(device)
        self.model.to(self.device)

    def data_parallel(self) -> None:
        """Average gradients over all ranks from now on; see `broadcast` and `all_reduce_mean`."""
        self.is_data_parallel = True

    def broadcast(self) -> None:
        """Copy rank 0's weights and buffers to every rank."""
        with torch.no_grad():
            for value in self.model.state_dict().values():
                dist.broadcast(value, src=0)

    def all_reduce_mean(
        self, parameters: list[nn.Parameter] | list[Tensor], figures: dict[str, float]
    ) -> dict[str, float]:
        """Average the gradients of `parameters`, running statistics and `figures` over all ranks.

        One all-reduce per step, however many passes a batch took. Every rank gets the same figures, so all ranks stop
        at the same loss that is not finite. Does nothing without other ranks.

        Returns:
            The averaged figures.
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
        """Prepare for an optimizer step."""
        self.model.train()

    def sample_mode(self, itr: int) -> None:
        """Prepare for drawing a batch."""
        self.model.eval()

    def eval_mode(self, itr: int) -> None:
        """Prepare for evaluation."""
        self.model.eval()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the model's parameters."""
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the model's state on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        self.model.load_state_dict(state)


class PredecoderAgent(Agent):
    """A predecoder with passes of bounded memory.

    Args:
        model: The predecoder.
        flops_per_syndrome: Cost of one shot's forward pass; it sets how many shots share a pass.

    Attributes:
        members: Agents of the other circuits of a family, whose networks use the parameters of this one.
    """

    members: tuple[PredecoderAgent, ...] = ()

    def __init__(self, model: Predecoder, flops_per_syndrome: int) -> None:
        super().__init__(model)
        self.output_mode, self.gate = model.output_mode, model.gate
        weights = sum(value.numel() for value in model.parameters())
        shots = math.ceil(max(FLOPS_PER_PASS, MIN_WEIGHT_REUSE * weights) / max(flops_per_syndrome, 1))
        self.shots_per_pass = min(MAX_SHOTS_PER_PASS, max(MIN_SHOTS_PER_PASS, shots))

    def parts(self, n: int) -> Iterator[slice]:
        """Yield slices of range(n), of nearly equal size and each small enough for one pass."""
        size = math.ceil(n / max(1, math.ceil(n / self.shots_per_pass)))
        for start in range(0, n, max(1, size)):
            yield slice(start, min(start + size, n))

    def __call__(self, detections: np.ndarray) -> Tensor:
        """Return log-odds [n, n_edges] with gradients for uint8 [n, n_detectors], in one pass."""
        log_odds: Tensor = self.model(torch.from_numpy(detections).to(self.device, torch.float32))
        return log_odds

    def infer(self, detections: np.ndarray) -> np.ndarray:
        """Return log-odds float32 [n, n_edges] without gradients for uint8 [n, n_detectors], in bounded passes."""
        with torch.no_grad():
            return np.concatenate([self(detections[part]).cpu().numpy() for part in self.parts(len(detections))])
