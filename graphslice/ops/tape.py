"""The operations that programs are recorded of, as modules do them, each with what backward has to run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphslice.ops import kernels, mixer_kernels
from graphslice.ops.operands import float_bits
from graphslice.ops.program import Size, Value
from graphslice.ops.recorder import NotRecorded, Recorder

#: N.
N = Size(row=1)


class Tape(Recorder):
    """Records what modules do with the rows of a batch; all sizes but N are multiples of 16."""

    # --- the ends -------------------------------------------------------------------------------------

    def embed(self, module: nn.Module, starts: Tensor, degrees: int) -> Value:
        """The rows that enter the first block: the token, and sums of the embeddings of the atoms.

        Args:
            module: with the tables ``atom``, ``in_degree``, ``out_degree`` and ``token``.
            starts: int64 ``[9]``, where each feature's rows begin.
            degrees: how many rows the tables of degrees have.
        """
        parts = [module.get_submodule(name) for name in ("atom", "in_degree", "out_degree", "token")]
        found = [self.parameter(part, "weight") for part in parts]
        tables, gradients = [here for here, _ in found], [there for _, there in found]
        count, channels = parts[0]._parameters["weight"].shape  # type: ignore[union-attr]
        out = Value(Size(row=channels))
        given = self.atoms, self.degrees, self.lengths, *tables
        sizes = self.hold(starts), count, degrees, N, channels
        self.run(kernels.embed, *given, out, *sizes)
        self.undo(lambda: self.run_back(kernels.embed_gradient, *given[:3], *gradients, self.gradient(out), *sizes))
        return out

    def read_out(self, x: Value, kinds: Sequence[str]) -> Value:
        """``[B, C]`` of every kind (``token``, ``max``, ``sum``, ``mean``), one behind the other."""
        channels = x.size.row
        out = Value(Size(sample=channels * len(kinds)))
        numbers = [("token", "max", "sum", "mean").index(kind) for kind in kinds]
        for place, kind in enumerate(numbers):
            self.run(kernels.read_out, x, self.lengths, out, kind, place, len(kinds), N, channels)
        if "max" in kinds:
            self.keep(x)

        def record(into: Value) -> None:
            self.run_back(kernels.zero, into, N, channels)
            for place, kind in enumerate(numbers):
                given = x if "max" in kinds else 0, self.lengths, self.gradient(out), into
                self.run_back(kernels.read_out_gradient, *given, kind, place, len(kinds), N, channels)

        self.undo(lambda: self.contribute(x, record))
        return out

    # --- operations that blocks have in common --------------------------------------------------------

    def linear(self, x: Value, module: nn.Linear) -> Value:
        """``x W^T + b``."""
        if type(module) is not nn.Linear:
            raise NotRecorded
        inputs, outputs = module.in_features, module.out_features
        (weight, grad_weight), (bias, grad_bias) = (self.parameter(module, name) for name in ("weight", "bias"))
        out = Value(Size(row=outputs))
        self.run(kernels.linear, x, self.transposed(module, "weight"), bias, out, N, inputs, outputs)
        self.keep(x)

        def undo() -> None:
            grad_x, start = self.into(x)
            own = self.gradient(out), grad_x, grad_weight, grad_bias, start
            self.run_back(kernels.linear_gradients, x, weight, *own, N, inputs, outputs)

        self.undo(undo)
        return out

    def add_norm(self, x: Value, y: Value | None, module: nn.LayerNorm, p: float) -> tuple[Value, Value]:
        """``x + dropout(y)`` and its norm."""
        channels = x.size.row
        (weight, grad_weight), (bias, grad_bias) = (self.parameter(module, name) for name in ("weight", "bias"))
        if y is None:
            p, branch = 0.0, self.like(x)
            self.run(kernels.zero, branch, N, channels)
        else:
            branch = y
        total, normed, moments = self.like(x), self.like(x), Value(Size(row=2))
        keys = self.keys(p, x.size)
        eps = float_bits(module.eps)
        self.run(kernels.add_norm, x, branch, weight, bias, total, normed, moments, N, channels, eps, *keys)
        self.keep(total, moments)

        def undo() -> None:
            if total not in self._gradients:
                self._gradients[total] = self.like(total)
                self.run_back(kernels.zero, self._gradients[total], N, channels)
            upstream = self.gradient(total), self.gradient(normed)

            def record(grad_x: Value) -> None:
                grad_y = self.like(x) if p else grad_x
                own = total, weight, grad_x, grad_y, moments, grad_weight, grad_bias, N, channels
                self.run_back(kernels.add_norm_gradients, *upstream, *own, *keys)
                if y is not None:
                    self.share_gradient(y, grad_y)

            self.contribute(x, record)

        self.undo(undo)
        return total, normed

    def add(self, a: Value, b: Value) -> Value:
        """``a + b``."""
        out = self.like(a)
        self.run(kernels.add, a, b, out, N, a.size.row)

        def undo() -> None:
            self.share_gradient(a, self.gradient(out))
            self.share_gradient(b, self.gradient(out))

        self.undo(undo)
        return out

    def dropout(self, x: Value, p: float) -> Value:
        """``dropout(x)``."""
        if not p:
            return x
        out, keys, channels = self.like(x), self.keys(p, x.size), x.size.row
        self.run(kernels.drop, x, out, N, channels, *keys)
        self.undo(
            lambda: self.contribute(
                x, lambda into: self.run_back(kernels.drop, self.gradient(out), into, N, channels, *keys)
            )
        )
        return out

    def gelu(self, x: Value) -> Value:
        """``GELU(x)``."""
        out, channels = self.like(x), x.size.row
        self.run(kernels.gelu_forward, x, out, N, channels)
        self.keep(x)
        self.undo(
            lambda: self.contribute(
                x, lambda into: self.run_back(kernels.gelu_gradient, x, self.gradient(out), into, N, channels)
            )
        )
        return out

    def bond_messages(self, x: Value, types: nn.Embedding, rings: nn.Embedding) -> Value:
        """:func:`graphslice.ops.bond_messages`."""
        out, channels, count = self.like(x), x.size.row, types.num_embeddings
        (by_type, grad_types), (by_ring, grad_rings) = (self.parameter(table, "weight") for table in (types, rings))
        self.run(kernels.bond_messages, x, self.bonds, by_type, by_ring, out, count, N, channels)
        self.keep(x)

        def record(into: Value) -> None:
            given = x, self.bonds, by_type, by_ring, self.gradient(out), into, grad_types, grad_rings
            self.run_back(kernels.bond_messages_gradient, *given, count, N, channels)

        self.undo(lambda: self.contribute(x, record))
        return out

    # --- of the mixers --------------------------------------------------------------------------------

    def aggregate(self, v: Value, p: float) -> Value:
        """``dropout(P) V``, where the graph is P."""
        out, keys, channels = self.like(v), self.keys(p, self.graph.size), v.size.row
        self.run(mixer_kernels.aggregate, self.graph, v, out, self.heads, N, channels, *keys)
        self.keep(v)

        def record(grads: list[Value]) -> None:
            given = self.graph, v, self.gradient(out)
            self.run_back(mixer_kernels.aggregate_gradient, *given, *grads, self.heads, N, channels, *keys)

        self.undo(lambda: self.contribute_all([v, self.graph], record))
        return out

    def broadcast_max(self, v: Value, local_channels: Tensor) -> Value:
        """The largest value of every channel that is not local, in every row."""
        out, maxima, channels = self.like(v), Value(Size(sample=v.size.row)), v.size.row
        local = self.hold(local_channels.float())
        self.run(mixer_kernels.broadcast_max, v, self.lengths, local, out, maxima, N, channels)
        self.keep(v, maxima)

        def record(into: Value) -> None:
            given = v, self.lengths, local, maxima, self.gradient(out), into, N, channels
            self.run_back(mixer_kernels.broadcast_max_gradient, *given)

        self.undo(lambda: self.contribute(v, record))
        return out

    def max_exchange(self, v: Value) -> Value:
        """The largest value of every channel exchanged with the first row's."""
        out, weights, channels = self.like(v), self.like(v), v.size.row
        self.run(mixer_kernels.max_exchange, v, self.lengths, out, weights, N, channels)
        self.keep(weights)

        def record(into: Value) -> None:
            self.run_back(mixer_kernels.max_exchange_gradient, weights, self.gradient(out), into, N, channels)

        self.undo(lambda: self.contribute(v, record))
        return out

    def column_sort(self, x: Value, descending: Tensor | None = None) -> Value:
        """Every channel sorted, in at most 256 rows; those of ``bool [C]`` descending."""
        out, channels = self.like(x), x.size.row
        rows: Value | int = Value(Size(row=channels // 4)) if self.backward else 0  # a byte each
        flip = torch.zeros(channels, dtype=torch.int32) if descending is None else -descending.int()
        self.run(mixer_kernels.column_sort, x, self.lengths, self.hold(flip), out, rows, N, channels)
        if isinstance(rows, Value):
            self.keep(rows)

        def record(into: Value) -> None:
            self.run_back(mixer_kernels.column_sort_gradient, self.gradient(out), rows, into, N, channels)

        self.undo(lambda: self.contribute(x, record))
        return out

    def sort_by_first(self, v: Value, tie: float) -> Value:
        """Every channel arranged as the first ranks, in at most 256 rows; rows that tie there share their values."""
        ordered, out, channels = self.like(v), self.like(v), v.size.row
        rows = Value(Size(row=channels // 4))  # a byte each
        share = float_bits(tie)
        self.run(mixer_kernels.sort_by_first, v, self.lengths, ordered, rows, out, share, N, channels)
        self.keep(v, rows)

        def record(into: Value) -> None:
            given = v, self.lengths, rows, self.gradient(out), into, share, N, channels
            self.run_back(mixer_kernels.sort_by_first_gradient, *given)

        self.undo(lambda: self.contribute(v, record))
        return out

    def attention(self, q: Value, k: Value, v: Value, p: float) -> Value:
        """``dropout(Softmax(Q K^T / sqrt(d) + bias)) V``, where the graph is the bias."""
        out, weights, channels = self.like(v), self.like(self.graph), v.size.row
        keys = self.keys(p, self.graph.size)
        self.run(mixer_kernels.attention, q, k, v, self.graph, weights, out, self.heads, N, channels, *keys)
        self.keep(q, k, v, weights)

        def record(grads: list[Value]) -> None:
            given = q, k, v, weights, self.gradient(out)
            self.run_back(mixer_kernels.attention_gradient, *given, *grads, self.heads, N, channels, *keys)

        self.undo(lambda: self.contribute_all([q, k, v, self.graph], record))
        return out

    def linear_attention(self, q: Value, k: Value, v: Value) -> Value:
        """``Q (K^T V) / n``."""
        out, channels = self.like(v), v.size.row
        self.run(mixer_kernels.linear_attention, q, k, v, self.lengths, out, self.heads, N, channels)
        self.keep(q, k, v)

        def record(grads: list[Value]) -> None:
            given = q, k, v, self.lengths, self.gradient(out)
            self.run_back(mixer_kernels.linear_attention_gradient, *given, *grads, self.heads, N, channels)

        self.undo(lambda: self.contribute_all([q, k, v], record))
        return out

    def head_norm(self, x: Value, module: nn.Module, which: int) -> Value:
        """The layer norm of each head, with one of the two ``scales`` and ``shifts`` of a module."""
        out, channels = self.like(x), x.size.row
        (scales, grad_scales), (shifts, grad_shifts) = (self.parameter(module, name) for name in ("scales", "shifts"))
        self.run(mixer_kernels.head_norm, x, scales, shifts, out, which, self.heads, N, channels)
        self.keep(x)

        def record(into: Value) -> None:
            given = x, scales, self.gradient(out), into, grad_scales, grad_shifts, which, self.heads, N, channels
            self.run_back(mixer_kernels.head_norm_gradient, *given)

        self.undo(lambda: self.contribute(x, record))
        return out
