"""The adapters of a ``peft`` model as one that ``PeftModel.from_pretrained`` opens."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from engram.core.checks import must
from engram.networks.catalogue import lora_of
from engram.settings.errors import Refused

_SUM: Final = "combined"
_HELD: Final = (".lora_", ".modules_to_save.")  # in names of what an adapter's file has


def to_peft(module: Any) -> tuple[bytes, str]:
    """Returns the file of the active adapters, and their configuration.

    Several are one adapter of all their ranks, side by side, with the sum of their outputs.

    Raises:
        Refused: If the module is no ``peft`` model with LoRA, or other parameters are trained.
    """
    if not (names := list(lora_of(module))):
        expected = "peft only for a peft model with LoRA, in units of its own"
        raise Refused(must("format", f"peft for {type(module).__name__}", expected))
    trained = [name for name, leaf in module.named_parameters() if leaf.requires_grad]
    if others := [name for name in trained if not any(part in name for part in _HELD)]:
        expected = "parameters of adapters alone, in format peft (or give format safetensors)"
        raise Refused(must("trained parameters", ", ".join(others[:4]), expected))
    if len(names) == 1:
        return _saved(module, names[0])
    module.add_weighted_adapter(names, [1.0] * len(names), _SUM, combination_type="cat")
    try:
        return _saved(module, _SUM)
    finally:
        module.delete_adapter(_SUM)


def _saved(module: Any, name: str) -> tuple[bytes, str]:
    with TemporaryDirectory() as folder:
        module.save_pretrained(folder, selected_adapters=[name], save_embedding_layers=False)
        at = Path(folder) / ("" if name == "default" else name)
        config = (at / "adapter_config.json").read_text(encoding="utf-8")
        return (at / "adapter_model.safetensors").read_bytes(), config
