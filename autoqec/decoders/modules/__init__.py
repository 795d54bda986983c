"""The search surface: one architecture a file, and predecoder.yaml, the config that this tree stands for.

A module's `build(block, head, view)` returns an nn.Module that maps float32 detection events
[batch, n_detectors] to a shift of the prior log-odds [batch, n_edges]. It starts at zero.
"""
