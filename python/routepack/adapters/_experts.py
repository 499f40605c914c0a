# SPDX-License-Identifier: Apache-2.0
"""How many routed experts a model has, as its configuration says."""

from __future__ import annotations

import functools
import importlib

from routepack.adapters._reasons import FallBack, Reason


@functools.cache
def experts_of(name: str) -> int:
    """Routed experts per layer of a model of Hugging Face that lies on this machine. @raises FallBack"""
    try:
        config = importlib.import_module("transformers").AutoConfig.from_pretrained(
            name, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        raise FallBack(
            Reason.UNSUPPORTED, f"the number of experts of {name} is not known ({error}); set Settings.experts"
        ) from None
    for where in (config, getattr(config, "text_config", None)):
        for key in ("num_experts", "n_routed_experts", "num_local_experts"):
            found = getattr(where, key, None)
            if isinstance(found, int) and found > 0:
                return found
    raise FallBack(Reason.UNSUPPORTED, f"{name} has no experts")
