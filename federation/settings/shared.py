"""All settings that methods share, and the rules that join them."""

from federation.settings.attacks import AttackSettings
from federation.settings.compression import CompressionSettings
from federation.settings.data import DataSettings
from federation.settings.evaluation import EvaluationSettings
from federation.settings.machine import MachineSettings
from federation.settings.model import ModelSettings
from federation.settings.protection import ProtectionSettings
from federation.settings.run import RunSettings
from federation.settings.time import TimeSettings
from federation.settings.training import TrainingSettings

GROUPS = (
    DataSettings,
    ModelSettings,
    RunSettings,
    TrainingSettings,
    TimeSettings,
    CompressionSettings,
    ProtectionSettings,
    AttackSettings,
    EvaluationSettings,
    MachineSettings,
)
"""The groups, in the order shown."""


class SharedSettings(
    MachineSettings,
    EvaluationSettings,
    AttackSettings,
    ProtectionSettings,
    CompressionSettings,
    TimeSettings,
    TrainingSettings,
    RunSettings,
    ModelSettings,
    DataSettings,
):
    """All groups in one. Code that needs one group takes that group's class as its argument."""
