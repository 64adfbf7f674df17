"""The contents of ``model.json``, which anybody may have written, checked before they are used."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from engram.core.standardization import Tokens
from engram.data.file_models import Settings, Stored
from engram.data.schema.columns import Schema

_Text = Annotated[str, Field(max_length=10**5)]


_Schema = Annotated[Schema | None, BeforeValidator(Schema.from_json)]


class _Standard(Stored):
    mean: list[float]
    deviation: list[float]


class _Tokenizer(Stored):
    by: Tokens
    words: list[str]
    file: str


class _Kind(Stored):
    inputs: _Text
    outputs: Annotated[int, Field(ge=0, lt=2**31)]
    classes: Annotated[list[str], Field(default_factory=list)]
    schema_: Annotated[_Schema, Field(alias="schema")] = None
    units: Annotated[dict[str, _Standard | _Tokenizer], Field(default_factory=dict)]


class _Range(Stored):
    name: str
    low: float
    high: float


class _Interval(Stored):
    level: float
    radii: list[float]


class ModelJson(Stored):
    """Its required entries; those with a default are missing in files of earlier versions."""

    what: _Text
    settings: Settings
    kind: _Kind
    form: Literal["network", "shifted", "mixture", "recalling", "layers"]
    outputs: Literal["classes", "labels", "tokens", "values", "times"]
    classes: list[str]
    client: _Text
    source: _Text
    format: Literal["safetensors", "onnx", "peft"]
    sha256: str
    ranges: Annotated[list[_Range], Field(default_factory=list)]
    intervals: Annotated[list[_Interval], Field(default_factory=list)]
