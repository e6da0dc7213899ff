"""Tensors of Apache Arrow, in its IPC format."""

from __future__ import annotations

from typing import Any

from fastshard.typed.kinds.base import SCHEMAS, EncodedKind, SampleMaker

__all__ = ["KINDS"]


class ArrowTensorKind(EncodedKind):
    """Tensors of Apache Arrow."""

    name = "arrow_tensor"
    libraries = ("pyarrow",)
    classes = ("pyarrow.Tensor",)
    reference = f"{SCHEMAS}atdata-arrow-tensor/1.0.0#/$defs/arrow_tensor"
    words = ("arrow", "tensor")
    lexicon = "arrowTensor"

    @staticmethod
    def encode(value: Any) -> object:
        """Return the IPC message of a tensor."""
        import pyarrow as pa

        if not isinstance(value, pa.Tensor):
            raise TypeError(f"expected a pyarrow.Tensor, got {type(value).__name__}")
        stream = pa.BufferOutputStream()
        pa.ipc.write_tensor(value, stream)
        return stream.getvalue().to_pybytes()

    @staticmethod
    def decode(data: Any) -> Any:
        """Return the tensor of an IPC message."""
        import pyarrow as pa

        return pa.ipc.read_tensor(pa.BufferReader(data))

    @staticmethod
    def equals(left: Any, right: Any) -> bool:
        return bool(left.equals(right))

    def make(self, name: str, maker: SampleMaker) -> Any:
        import pyarrow as pa

        return pa.Tensor.from_numpy(maker.floats())


KINDS = (ArrowTensorKind,)
