"""Data, and their partition among clients."""

import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from engram.core.checks import must
from engram.data.source import Source
from engram.scoring.tasks import REGRESSION
from engram.settings.errors import Refused
from engram.settings.fields import Count, Float, Int, Settings, Whole

if TYPE_CHECKING:
    from engram.data.schema.columns import Column

_VOCABULARY: Final = 5000  # tokens of rows that are tokens already


def _source(value: object, read: ValidatorFunctionWrapHandler) -> Source:
    return value if isinstance(value, Source) else Source(read(value))


def with_schema(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with the schema's contents, and the columns of its roles.

    Raises:
        Refused: The schema cannot be read, or an entry is unknown or impossible; or settings name
            other columns than its roles.
    """
    text = config.get("schema")
    if not isinstance(text, str) or not text:
        return dict(config)
    from engram.data.schema.written import read_schema, to_toml  # noqa: PLC0415 - slow to import

    schema = read_schema(text)
    target = schema.of_role("target")
    said = {"target-column": target, "task-column": schema.of_role("client")}
    if schema.column(target or config.get("target-column", "y")).kind == "number":
        said["task"] = REGRESSION.name
    said = {key: value for key, value in said.items() if value}
    for key in said.keys() & config.keys() - {"task"}:
        if config[key] != said[key]:
            role = "the column that has the role in the schema"
            raise Refused(must(key, config[key], f"{said[key]}, {role}"))
    return {**said, **config, "schema": to_toml(schema)}


@lru_cache(maxsize=8)
def _text_of(written: str, *others: str) -> "Column | None":
    from engram.data.schema.written import read_schema  # noqa: PLC0415 - slow to import

    schema = read_schema(written)
    return next((schema.by_name[name] for name in schema.texts if name not in others), None)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pydantic's models had a method of this name

    class TableSettings(Settings):
        """Settings of tables with named columns."""

        schema: str = Field(  # type: ignore[assignment]  # likewise
            "",
            description="tables with named columns: lines of a schema, as columns.visit = {kind "
            '= "date"}, or a file of them',
        )
        strict: bool = Field(
            True,
            description="tables with named columns: whether a column that may be several things is "
            "refused; otherwise the proposal is taken",
        )


class DataSettings(TableSettings):
    """Data, and their partition among clients."""

    dataset: Annotated[str, WrapValidator(_source)] = Field(
        "digits",
        description="digits (comes with the platform), mnist, fashion-mnist, cifar10, cifar100, "
        "cifar100-coarse (20 superclasses); hf:NAME (of the Hugging Face Hub); of your own "
        "npz:PATH, npy:FOLDER, csv:PATH, xlsx:PATH (Excel), images:FOLDER, leaf:FOLDER, "
        "parquet:PATH, arrow:PATH; of methods for tables: npz:PATH, csv:PATH, xlsx:PATH, or "
        "sparse-linear, sparse-logistic, sparse-poisson (simulated); of methods in which clients "
        "are classes of images: several of the first, with commas, or permuted-NAME for other "
        "pixels; linear-groups, cosine-groups (simulated); csv:PATH, arms and what they pay",
    )
    test_fraction: Float = Field(
        0.4,
        ge=0,
        lt=1,
        description="share of the rows held out for testing, where the data set has "
        "no test rows of its own; 0, of molar: it fits all rows, and nothing is scored",
    )
    num_classes: Whole = Field(
        0,
        le=10**6,
        description="your own data: number of classes, if the rows may lack some; 0: as many as "
        "the rows have",
    )
    partition: Literal["halves", "iid", "dirichlet", "pathological", "natural", "blocks"] = Field(
        "halves",
        description="which client holds which rows: halves (half the clients hold the first half "
        "of the classes evenly, the others few rows of one of those and many of one of the rest), "
        "iid, dirichlet, pathological, natural (by the data's task column; the default where there "
        "is one), blocks (of consecutive rows)",
    )
    num_clients: Count = Field(
        20, le=10**6, description="clients in the federation; by default those that rows name"
    )
    rows_per_class: Int = Field(8, ge=2, description="halves: training rows of each class (a)")
    test_rows_per_class: Int = Field(6, ge=2, description="halves: test rows of each class (a)")
    dirichlet_alpha: Float = Field(
        0.5, gt=0, description="dirichlet: concentration; smaller is more uneven"
    )
    classes_per_client: Count = Field(2, description="pathological: classes a client holds")
    target_column: str = Field(
        "y", description="csv, parquet, arrow, hf, tables: the target, by name"
    )
    task_column: str = Field(
        "task", description="the column, or array of npz and npy, that names a row's client"
    )
    input_columns: str = Field(
        "",
        description="csv, parquet, arrow, hf, tables: the columns of inputs, by name, with commas; "
        "empty: all others",
    )
    missing: Literal["refuse", "median", "indicator"] = Field(
        "refuse",
        description="csv, data frames, and tables of parquet, arrow and hf: what is done where a "
        "value is missing: refuse, median (of the client's training rows; of text, the commonest), "
        "indicator (0, and a column that says where)",
    )
    images: Literal["auto", "none", "grey", "channels-last", "alpha"] = Field(
        "auto",
        description="which rows of your own are images, which networks take as (channels, height, "
        "width): auto (grey levels, uint8, of two axes, or of three with 1 or 3 channels; and all "
        "rows for cnn, resnet and torchvision's), none (rows keep their shape), grey (rows are "
        "(height, width)), channels-last (rows are (height, width, channels)), alpha (likewise, "
        "with the transparency of image files as the last channel; else it is composed over white)",
    )
    standardize: Literal["auto", "federation", "client", "none"] = Field(
        "auto",
        description="whether networks take columns of numbers less their mean, over their standard "
        "deviation: those of all clients' training rows (federation), of the client's own "
        "(client), or not (none); auto: federation for the columns of csv, parquet, arrow, hf and "
        "data frames, and not for arrays; with privacy, client (example: none), since nothing is "
        "told without noise. Targets of task regression are standardized in training by "
        "federation, unless a loss of yours, privacy or none is set",
    )

    @property
    def source(self) -> Source:
        """Where rows come from."""
        return Source.of(self.dataset)

    @property
    def text(self) -> "Column | None":
        """The column of texts, which is then the only input; None if there is none."""
        return _text_of(self.schema, self.target_column, self.task_column) if self.schema else None

    @property
    def num_tokens(self) -> int:
        """Number of tokens of a built-in network for texts: padding and unknown words, too."""
        return 2 + (_VOCABULARY if self.text is None else self.text.vocabulary)
