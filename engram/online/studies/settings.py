"""Settings of the experiments with universal online learning."""

from dataclasses import dataclass
from pathlib import Path

from engram.studies.settings import StudySettings, argument, option


@dataclass(frozen=True)
class UniversalSettings(StudySettings):
    """Losses of unknown curvature: regret of the universal ensemble and of others.

    SETTING is strongly-convex, logistic, squared, absolute, linear, fixed,
    drifting, sea-0.05, sea-0.1, sea-0.2, sea-0.5, sea-1, or a game: bilinear,
    curved, or matrix, each followed by -honest or -dishonest.
    """

    settings: tuple[str, ...] = argument(
        (),
        metavar="[SETTING]...",
        among="engram.online.studies.curvature_games:SETTINGS",
        help="Settings to play; default all.",
    )
    horizon: int = option(16_000, metavar="T", least=1, most=10**8, help="Rounds.")
    seeds: int = option(3, metavar="N", least=1, most=1000, help="Draws of each.")


@dataclass(frozen=True)
class UniversalStreamSettings(StudySettings):
    """Federated online learning: regret of servers while clients' rows arrive.

    Each of 20 clients holds a block of the rows, and takes one per round. The
    server steps along their mean gradient of a linear model by the universal
    ensemble, FedAvg, FedAdam or FedYogi, with its default size and the best one.
    simulations/presets/online.toml is the same federation, for engram run.
    """

    path: Path = argument(metavar="TABLE", help="An .npz file: x and y, in the order of time.")
    rounds: int | None = option(
        None, metavar="T", most=10**8, help="Default: as many as each client has rows."
    )

    @property
    def detail(self) -> str:
        """The table's name."""
        return f"-{self.path.stem}"
