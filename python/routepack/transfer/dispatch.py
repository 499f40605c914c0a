# SPDX-License-Identifier: Apache-2.0
"""Tokens to where their experts are: the router stays in logical order, and what the token dispatcher is handed is put
into slot order. Needs torch."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from routepack._errors import InvalidInput

METHOD = "dispatch_preprocess"
ARGUMENTS = ("routing_map", "probs")
BUFFER = "routepack_slot_to_logical"
OWNER = "_routepack_dispatch"  # on a wrapped dispatcher, also when somebody wraps it once more


def to_physical(
    routing_map: torch.Tensor, probs: torch.Tensor, slot_to_logical: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns of both in slot order: column v is that of expert `slot_to_logical[v]`. New tensors, never views.

    Gradients of the second go back to the logical columns of `probs`.

    :param routing_map: bool [tokens, E], which experts a token chose
    :param probs: float [tokens, E], zero where it did not
    :param slot_to_logical: int64 [E] on the same device
    :raises InvalidInput: for other shapes or types; nothing waits for a device

    >>> import torch
    >>> chosen, weights = torch.tensor([[True, False, False]]), torch.tensor([[0.5, 0.0, 0.0]])
    >>> to_physical(chosen, weights, torch.tensor([2, 0, 1]))
    (tensor([[False,  True, False]]), tensor([[0.0000, 0.5000, 0.0000]]))
    """
    experts = slot_to_logical.numel()
    if slot_to_logical.dtype != torch.int64 or slot_to_logical.dim() != 1:
        found = f"{slot_to_logical.dtype} {list(slot_to_logical.shape)}"
        raise InvalidInput(f"slot_to_logical: found {found}, wanted torch.int64 [{experts}]")
    for name, given in (("routing_map", routing_map), ("probs", probs)):
        if given.dim() != 2 or given.shape[1] != experts:
            raise InvalidInput(
                f"{name}: found shape {list(given.shape)}, wanted [tokens, {experts}], a column per expert"
            )
    return routing_map.index_select(1, slot_to_logical), probs.index_select(1, slot_to_logical)


class PhysicalDispatch:
    """Puts what a Megatron token dispatcher is handed into slot order, for one layer.

    Wraps the method `dispatch_preprocess(hidden_states, routing_map, probs)` of a dispatcher *instance*, through which
    every kind of dispatcher and every schedule passes exactly once per forward pass, recomputation included. Starts
    with expert e in slot e. The map lives at one address, so that captured graphs see `update`; it is a buffer outside
    state dicts. Not to be updated between a forward pass and its backward pass.

    :param dispatcher: anything with that method
    :param experts: E of this layer, over all ranks
    :param module: where the buffer is registered, so that it follows the module to its device; a module of its own when
        there is none
    :param device: where the buffer is made; torch's default when there is none
    :raises InvalidInput: for a dispatcher without that method, or one that is wrapped already

    >>> class Dispatcher:
    ...     def dispatch_preprocess(self, hidden_states, routing_map, probs):
    ...         return routing_map.tolist()
    >>> import torch
    >>> dispatcher = Dispatcher()
    >>> physical = PhysicalDispatch(dispatcher, experts=2)
    >>> physical.update([1, 0])
    >>> dispatcher.dispatch_preprocess(None, torch.tensor([[True, False]]), torch.tensor([[1.0, 0.0]]))
    [[False, True]]
    >>> physical.remove()
    >>> dispatcher.dispatch_preprocess(None, torch.tensor([[True, False]]), torch.tensor([[1.0, 0.0]]))
    [[True, False]]
    """

    def __init__(self, dispatcher: Any, experts: int, *, module: Any = None, device: Any = None) -> None:
        if experts < 1:
            raise InvalidInput(f"experts: found {experts}, wanted 1 or more")
        self._dispatcher = dispatcher
        self._module = torch.nn.Module() if module is None else module
        self._removed: torch.Tensor | None = torch.arange(experts, dtype=torch.int64, device=device)
        self._inner: Any = None
        self._was_own = False
        self.install()

    @property
    def slot_to_logical(self) -> torch.Tensor:
        """int64 [E], the expert in each slot: the live buffer."""
        return getattr(self._module, BUFFER) if self._removed is None else self._removed

    @property
    def installed(self) -> bool:
        return self._removed is None

    def install(self) -> None:
        """Wraps the method again after `remove`, with the map of before; nothing when this object wraps it.

        :raises InvalidInput: as for a new object
        """
        if self._removed is None:
            return
        _refuse_unfit(self._dispatcher)
        if hasattr(self._module, BUFFER):
            raise InvalidInput(f"{type(self._module).__name__}: found a buffer {BUFFER}, wanted a module without one")
        self._was_own = METHOD in vars(self._dispatcher)
        self._inner = getattr(self._dispatcher, METHOD)
        self._module.register_buffer(BUFFER, self._removed, persistent=False)
        self._removed = None
        setattr(self._dispatcher, METHOD, self._dispatch)
        setattr(self._dispatcher, OWNER, self)

    def update(self, placement_layer: Any) -> None:
        """Takes a layer's row of `Placement.physical_to_logical`, in place. Nothing is written when it is refused.

        :param placement_layer: [E], the expert in each slot: a list, or an array in host memory
        :raises InvalidInput: unless it is a permutation of 0 … E − 1
        """
        live = self.slot_to_logical
        given = placement_layer.detach().cpu().numpy() if torch.is_tensor(placement_layer) else placement_layer
        row = np.asarray(given)
        if row.dtype.kind not in "iu" or row.shape != (live.numel(),):
            raise InvalidInput(f"placement: found {row.dtype.name} {list(row.shape)}, wanted integers [{live.numel()}]")
        if not (np.sort(row) == np.arange(live.numel())).all():
            raise InvalidInput(f"placement: found {row.tolist()}, wanted each of 0 to {live.numel() - 1} once")
        with torch.no_grad():
            live.copy_(torch.from_numpy(row.astype(np.int64)))

    def remove(self) -> None:
        """Gives the dispatcher its own method back; nothing when that was done.

        :raises InvalidInput: when somebody else wrapped the method after this object did
        """
        if not self.installed:
            return
        if getattr(getattr(self._dispatcher, METHOD), "__self__", None) is not self:
            found = f"{type(self._dispatcher).__name__}.{METHOD} wrapped again by another"
            raise InvalidInput(f"{found}; wanted that wrapping removed first")
        if self._was_own:
            setattr(self._dispatcher, METHOD, self._inner)
        else:
            delattr(self._dispatcher, METHOD)
        delattr(self._dispatcher, OWNER)
        self._removed = self.slot_to_logical
        delattr(self._module, BUFFER)
        self._inner = None

    def _dispatch(self, hidden_states: Any, routing_map: Any, probs: Any, *rest: Any, **options: Any) -> Any:
        routing_map, probs = to_physical(routing_map, probs, self.slot_to_logical)
        return self._inner(hidden_states, routing_map, probs, *rest, **options)


def _refuse_unfit(dispatcher: Any) -> None:
    kind = type(dispatcher).__name__
    looked_for = f"{METHOD}(hidden_states, {', '.join(ARGUMENTS)})"
    method = getattr(dispatcher, METHOD, None)
    if not callable(method):
        raise InvalidInput(f"{kind}: found no method {METHOD}, wanted {looked_for}")
    if hasattr(dispatcher, OWNER):
        raise InvalidInput(f"{kind}: found {METHOD} wrapped already, wanted one PhysicalDispatch per dispatcher")
    try:
        names = list(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # a compiled one: nothing to read
        names = ["", *ARGUMENTS]
    if tuple(names[1:3]) != ARGUMENTS:
        raise InvalidInput(f"{kind}: found {METHOD}({', '.join(names)}), wanted {looked_for}")
    if not hasattr(dispatcher, "__dict__"):
        raise InvalidInput(f"{kind}: found an object without attributes of its own (slots), wanted one to wrap")
