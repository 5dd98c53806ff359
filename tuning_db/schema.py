"""Database tables. Increment SCHEMA_VERSION in tuning_db/location.py with every change."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, deferred, mapped_column, relationship

RATES = ("flops_per_us", "bytes_per_us")
"""Columns of a device with the highest rates that were measured."""


class Base(DeclarativeBase):
    """Base class of all tables."""


def columns(row: Base) -> dict[str, Any]:
    """Return the columns of a row that are loaded with it, by name."""
    return {column.name: getattr(row, column.name) for column in row.__table__.c if column.name != "blob"}


class Device(Base):
    """A kind of GPU or CPU on which measurements were taken."""

    __tablename__ = "device"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True, doc='"NVIDIA H200", or the CPU model with its number of threads')
    target: Mapped[str] = mapped_column(doc='newest target whose code it runs: "sm_90", "x86-64-v4"')
    flops_per_us: Mapped[float] = mapped_column(doc="highest arithmetic rate measured, per microsecond")
    bytes_per_us: Mapped[float] = mapped_column(doc="highest memory rate measured, read and written, per microsecond")
    details: Mapped[dict[str, Any]] = mapped_column(
        JSON, default=dict, doc="other facts about the device, such as its number of multiprocessors"
    )


class Environment(Base):
    """The software that measurements were taken with."""

    __tablename__ = "environment"
    id: Mapped[int] = mapped_column(primary_key=True)
    software: Mapped[str] = mapped_column(unique=True, doc="JSON, sorted keys: versions of torch, CUDA and others")


class ProblemRow(Base):
    """A problem, identified by its canonical text."""

    __tablename__ = "problem"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(unique=True, doc="the canonical text, with all fields in their order")
    operator: Mapped[str] = mapped_column(doc="the first word of the text")


class Library(Base):
    """A binary, compressed: a device image or a shared library, with the tools and flags that made it."""

    __tablename__ = "library"
    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True, doc="SHA-256 of the uncompressed binary")
    kind: Mapped[str] = mapped_column(doc='"device_image", "shared_library" or "cudnn_plan"')
    target: Mapped[str] = mapped_column(doc='target that it was compiled for: "sm_90", "x86-64-v4"')
    compiler: Mapped[str] = mapped_column(doc="name and version of the compiler")
    flags: Mapped[str] = mapped_column(doc="the compiler's options")
    cutlass: Mapped[str] = mapped_column(doc="version of the CUTLASS headers")
    abi_version: Mapped[int] = mapped_column(doc="version of the interface between kernels and the engine")
    size: Mapped[int] = mapped_column(doc="bytes of the uncompressed binary")
    blob: Mapped[bytes] = deferred(
        mapped_column(LargeBinary, doc="zlib; in a packed database a Zstandard frame, which names its dictionary")
    )


class Dictionary(Base):
    """A Zstandard dictionary that binaries of a packed database share. A database that was not packed has none."""

    __tablename__ = "dictionary"
    id: Mapped[int] = mapped_column(primary_key=True, doc="Zstandard's id of the dictionary, which frames name")
    size: Mapped[int] = mapped_column(doc="bytes of the uncompressed dictionary")
    blob: Mapped[bytes] = mapped_column(LargeBinary, doc="a Zstandard frame with a checksum")


class Extract(Base):
    """States what a packed database leaves out. A database with all that was measured has no such row."""

    __tablename__ = "extract"
    id: Mapped[int] = mapped_column(primary_key=True)
    kept: Mapped[str] = mapped_column(doc="what `autotune db pack` kept of its sources, as a sentence")


class KernelRow(Base):
    """A kernel of a family, or a torch operator (without a library). `error` is set if it did not compile."""

    __tablename__ = "kernel"
    __table_args__ = (UniqueConstraint("family", "config", "dtype", "epilogue", "target", "source"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    family: Mapped[str] = mapped_column(doc="name of the family, or of the library whose operator it is")
    config: Mapped[str] = mapped_column(doc="JSON, keys in the family's order")
    dtype: Mapped[str] = mapped_column(doc="dtype of the problem")
    epilogue: Mapped[str] = mapped_column(doc="the chain of steps that it ends with")
    target: Mapped[str] = mapped_column(doc="target that it is compiled for")
    source: Mapped[str] = mapped_column(doc="digest of the source and headers that it was compiled from")
    symbol: Mapped[str] = mapped_column(doc="name of the kernel in its library")
    weight_layouts: Mapped[dict[str, str]] = mapped_column(
        JSON, default=dict, doc="operand -> layout of a weight that is not stored as in torch"
    )
    launch_names: Mapped[list[str]] = mapped_column(JSON, default=list, doc="launch values in the order of the kernel")
    error: Mapped[str | None] = mapped_column(doc="message of the compiler")
    library_id: Mapped[int | None] = mapped_column(ForeignKey("library.id"), doc="the binary that holds it")
    digest: Mapped[str | None] = mapped_column(doc="SHA-256 of what running reads of the row; see trust/digests.py")
    library: Mapped[Library | None] = relationship()


class Measurement(Base):
    """One kernel with launch values on one problem and device: its times, or the reason why there are none."""

    __tablename__ = "measurement"
    __table_args__ = (Index("measurement_of", "device_id", "problem_id", "status", "median_us"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"))
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernel.id"), index=True)
    launch: Mapped[dict[str, int]] = mapped_column(JSON, default=dict, doc="launch values by name")
    status: Mapped[str] = mapped_column(doc='"ok", "refused", "wrong", "unstable", "leaks", "crashed" or "timed_out"')
    error: Mapped[str | None] = mapped_column(doc="message of a trial that is not ok")
    relative_error: Mapped[float | None] = mapped_column(doc="norm of the difference over norm of the reference")
    median_us: Mapped[float | None] = mapped_column(doc="median of the samples")
    spread_us: Mapped[float | None] = mapped_column(doc="interquartile range of the samples")
    samples_us: Mapped[list[float]] = mapped_column(JSON, default=list, doc="time of one launch in each sample")
    final: Mapped[bool] = mapped_column(default=False, doc="timed in interleaved rounds with the other finalists")
    details: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict, doc="docs/internals/measurement.md lists them")
    recorded: Mapped[str | None] = mapped_column(doc="UTC, for information only: clocks jump, so nothing depends on it")
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    digest: Mapped[str | None] = mapped_column(doc="SHA-256 of what running reads of the row; see trust/digests.py")
    kernel: Mapped[KernelRow] = relationship()
    problem: Mapped[ProblemRow] = relationship()
    device: Mapped[Device] = relationship()


class PlanRow(Base):
    """A whole network with a candidate for each layer, timed as one on a device; on a GPU as one CUDA graph."""

    __tablename__ = "plan"
    __table_args__ = (Index("plan_of", "device_id", "network", "median_us"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    network: Mapped[str] = mapped_column(doc='"ResNet n=32 input=3x224x224 dtype=f16 1ba3d518a22f"')
    median_us: Mapped[float] = mapped_column(doc="median time of the whole network")
    spread_us: Mapped[float] = mapped_column(doc="interquartile range of the samples")
    choices: Mapped[list[dict[str, Any]]] = mapped_column(
        JSON, doc="for each layer, in order: layer, kernel (its id), launch, us (timed alone), overlap"
    )
    details: Mapped[dict[str, Any]] = mapped_column(
        JSON,
        default=dict,
        doc="samples_us; alone_us, the time of the plain layers with the winner of each; alternatives, by name; "
        "torch_us, the times of the whole network on torch's operators in the rounds of the plan's time, by candidate; "
        "memory, for each activation its buffer, offset, bytes, and the positions of its first and last layer",
    )
    recorded: Mapped[str | None] = mapped_column(doc="UTC, for information only: clocks jump, so nothing depends on it")
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    digest: Mapped[str | None] = mapped_column(doc="SHA-256 of what running reads of the row; see trust/digests.py")


class NetworkRow(Base):
    """The layers of a network that has plans, without values of weights: `autotune verify` runs a plan with it alone.

    A row serves the plans of its key, and those of other batch sizes whose keys follow from it.
    """

    __tablename__ = "network"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(index=True, doc="the network, as plans name it")
    body: Mapped[str] = mapped_column(doc="its text (autotune/ir/network_text.py), by LZMA, in base 85")
    digest: Mapped[str] = mapped_column(unique=True, doc="SHA-256 of key and text; see trust/digests.py")


class Signature(Base):
    """A signature of all that running reads of the database, by the owner of a key; see trust/signature.py."""

    __tablename__ = "signature"
    key: Mapped[str] = mapped_column(primary_key=True, doc="the public Ed25519 key: base64 of its 32 bytes")
    value: Mapped[str] = mapped_column(doc="the signature: base64 of its 64 bytes")


class Claim(Base):
    """A kernel that a tuning process tries now or next, so that no other process tries it."""

    __tablename__ = "claim"
    owner: Mapped[str] = mapped_column(
        primary_key=True, doc="the process, as store.py names it, and the number of its claim"
    )
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"))
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernel.id"))
    since: Mapped[float] = mapped_column(doc="seconds since 1970")
