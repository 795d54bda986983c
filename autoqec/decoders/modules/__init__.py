"""Editable modules: one architecture per file, and predecoder.yaml, the config that a branch proposes.

A module's `build(block, head, view)` returns an nn.Module that maps float32 detection events [batch, n_detectors] to a
shift of the prior log-odds [batch, n_edges]. The shift of an untrained network is zero.
"""
