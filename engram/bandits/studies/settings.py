"""Settings of the Meta-Ban paper's experiments."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engram.studies.settings import StudySettings, argument, option


@dataclass(frozen=True)
class MetaBanSettings(StudySettings):
    """Collaborative bandits: Figures 1 to 4 of the Meta-Ban paper (Sec. 7).

    WORLD is digits (20 users), digits-groups (the right arm depends on the
    image and the user's group), classes or classes-groups (the same of data
    sets, such as mnist or npz:PATH), ratings (a CSV with a rating a row),
    linear-groups or cosine-groups (users whose groups are known).

    NAME is meta-ban, neural-ucb-one, neural-ucb-ind, neural-ts, club, sclub,
    cofiba, locb, linucb-one, linucb-ind, epsilon-greedy, molar or random. Each
    has twelve settings; the best in two worlds is played in N other ones.
    """

    world: str = argument(
        "digits",
        metavar="[WORLD]",
        among="engram.bandits.studies.environments:ENVIRONMENTS",
        help="The environment.",
    )
    sources: tuple[str, ...] = argument(
        (), metavar="[SOURCE]...", help="Data sets of classes, or a CSV of ratings."
    )
    methods: tuple[str, ...] = option(
        (),
        flags=("--method", "-m"),
        metavar="NAME",
        among="engram.bandits.studies.methods:METHODS",
        help="May be repeated; default all.",
    )
    rounds: int = option(2000, metavar="T", least=1, most=10**8, help="Rounds in each world.")
    seeds: int = option(5, metavar="N", least=1, most=1000, help="Worlds.")
    ablation: str | None = option(
        None, metavar="NAME", among=("nu",), help="Also Figure 4: nu, with gamma = 0.4."
    )
    columns: str = option("user,item,rating", metavar="U,I,R", help="Columns of the CSV.")
    data_dir: Path = option(Path("data"), metavar="DIR", help="Folder of mnist, or for it.")

    def problems(self) -> Iterator[str]:
        """Names an environment that lacks its sources, and an ablation without its method."""
        from engram.bandits.studies.environments import source_problems  # noqa: PLC0415 - slow to import

        yield from source_problems(self.world, self.sources, self.columns)
        if self.ablation and "meta-ban" not in self.methods:
            yield "an ablation is of meta-ban, which is not among the methods"

    @property
    def detail(self) -> str:
        """The world."""
        return f"-{self.world}"
