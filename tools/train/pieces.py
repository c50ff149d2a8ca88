"""Switchable torch.compile for the pure functions the model is made of.

Only small functions of tensors are compiled, never modules: every layer calls the same code object with the same shapes, so a
whole model costs about a dozen compilations instead of one per layer and phase.
"""

from __future__ import annotations

import functools

import torch

_enabled = False


def enable_compile(on: bool) -> None:
    global _enabled
    _enabled = on
    if on:
        # One code object serves all layers, phases and both passes; each combination of shapes is one cache entry.
        torch._dynamo.config.cache_size_limit = 256
        torch._dynamo.config.accumulated_cache_size_limit = 2048


def _switchable(fn, dynamic: bool | None):
    compiled = None

    @functools.wraps(fn)
    def call(*args):
        nonlocal compiled
        if not _enabled:
            return fn(*args)
        if compiled is None:
            compiled = torch.compile(fn, fullgraph=True, dynamic=dynamic)
        return compiled(*args)

    return call


def piece(fn):
    """Decorator: runs the function through torch.compile when `enable_compile(True)` was called; every shape on its own."""
    return _switchable(fn, False)


def piece_any_length(fn):
    """As `piece`, but sizes that change from call to call (sequence length, entries) become symbolic after the first call."""
    return _switchable(fn, None)
