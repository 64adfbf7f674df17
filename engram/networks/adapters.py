"""Low-rank adapters of ``peft``: which of them clients share.

An adapter adds B A x to what a layer computes, with A (r, inputs) and B (outputs, r) of small rank
r (Hu et al., 2022). ``peft`` itself is imported only by whoever brings a model of it.
"""

import copy
from collections.abc import Callable
from typing import Any, Final, Literal

from torch import nn

from engram.core.checks import require
from engram.networks.base import copied

Adapters = Literal["shared", "frozen-a", "shared-a", "personal", "dual"]

_PERSONAL: Final = {
    "shared-a": "*.lora_*B.*",  # lora_B and lora_embedding_B
    "personal": "*.lora_*",
    "dual": "*.lora_*.personal*",
}
_OWN: Final = "personal"  # name of the adapter that each client keeps where there are two
_FIXED: Final = (".lora_A.", ".lora_embedding_A.")


def with_adapters(
    make: nn.Module | Callable[[], nn.Module], adapters: Adapters
) -> Callable[[], nn.Module]:
    """Returns a constructor of a ``peft`` model with other adapters.

    Args:
        make: The model, which stays as it is, or what makes one.
        adapters: ``frozen-a``: A stays as it is drawn (FFA-LoRA; Sun et al., ICLR 2024). ``dual``:
            an adapter called "personal" is added to the active one, whose output it adds to, unless
            the model has one by this name (Yang et al., NeurIPS 2024, with fixed weights). Others
            change no model, only what is personal.

    Raises:
        ValueError: If the model has no such adapters, or two cannot be added up.
    """

    def build() -> nn.Module:
        module = copied(make) if isinstance(make, nn.Module) else make()
        found = lora_of(module)
        expected = f"a peft model with LoRA where adapters is {adapters}"
        require(bool(found), "model", type(module).__name__, expected)
        if adapters == "frozen-a":
            for name, leaf in module.named_parameters():
                leaf.requires_grad_(leaf.requires_grad and not any(a in name for a in _FIXED))
        if adapters == "dual":
            _add_personal(module)
        return module

    return build


def personal_patterns(personal: str, adapters: Adapters) -> str:
    """Returns patterns of personal parameters, with commas: given ones, and those of adapters.

    Raises:
        ValueError: If the given ones are of shared parameters.
    """
    own = _PERSONAL.get(adapters, "")
    expected = f"patterns without ! where adapters is {adapters}"
    require(not own or not personal.startswith("!"), "personal", personal, expected)
    return ",".join(filter(None, (personal, own)))


def lora_of(module: Any) -> dict[str, Any]:
    """Returns the configurations of a ``peft`` model's active LoRA adapters, by name."""
    configs = getattr(module, "peft_config", {})
    active = module.active_adapters if configs else []
    return {name: configs[name] for name in active if configs[name].peft_type == "LORA"}


def _add_personal(module: Any) -> None:
    (first, config), *_ = lora_of(module).items()
    if _OWN not in module.peft_config:
        module.add_adapter(_OWN, copy.deepcopy(config))
    for each in (config, module.peft_config[_OWN]):
        plain = not (each.use_dora or each.use_rslora or each.modules_to_save)
        given = "one with use_dora, use_rslora, modules_to_save or bias"
        expected = "plain LoRA where adapters is dual"
        require(plain and each.bias == "none", "peft configuration", given, expected)
    module.base_model.set_adapter([first, _OWN])
