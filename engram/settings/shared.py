"""All settings that methods share, and the rules that join them."""

from engram.settings.attacks import AttackSettings
from engram.settings.compression import CompressionSettings
from engram.settings.data import DataSettings
from engram.settings.evaluation import EvaluationSettings
from engram.settings.machine import MachineSettings
from engram.settings.model import ModelSettings
from engram.settings.protection import ProtectionSettings
from engram.settings.run import RunSettings
from engram.settings.time import TimeSettings
from engram.settings.training import TrainingSettings

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
