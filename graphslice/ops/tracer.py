"""Operations of traced programs, each with its forward and backward instructions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphslice.ops import kernels, mixer_kernels
from graphslice.ops.base_tracer import BaseTracer, NotTraceable
from graphslice.ops.operands import float_bits
from graphslice.ops.program import Size, Value

#: The number of rows, N, as an operand.
N = Size(row=1)


class Tracer(BaseTracer):
    """Tracer of the operations of modules; all sizes but N are multiples of 16."""

    # --- embedding and readout -------------------------------------------------------------------------------------

    def embed(self, module: nn.Module, starts: Tensor, degrees: int) -> Value:
        """Trace the input of the first block: the graph token and the summed embeddings of each atom.

        Args:
            module: with the embedding tables ``atom``, ``in_degree``, ``out_degree`` and ``token``.
            starts: int64 ``[9]``, first row of each feature in the table ``atom``.
            degrees: number of rows of the degree tables.
        """
        parts = [module.get_submodule(name) for name in ("atom", "in_degree", "out_degree", "token")]
        parameters = [self.parameter(part, "weight") for part in parts]
        tables, gradients = [table for table, _ in parameters], [gradient for _, gradient in parameters]
        count, channels = parts[0]._parameters["weight"].shape  # type: ignore[union-attr]
        out = Value(Size(row=channels))
        inputs = self.atoms, self.degrees, self.lengths, *tables
        sizes = self.hold_constant(starts), count, degrees, N, channels
        self.emit_forward(kernels.embed, *inputs, out, *sizes)
        self.on_backward(
            lambda: self.emit_backward(kernels.embed_gradient, *inputs[:3], *gradients, self.gradient(out), *sizes)
        )
        return out

    def read_out(self, x: Value, kinds: Sequence[str]) -> Value:
        """Trace the readouts (``token``, ``max``, ``sum``, ``mean``), ``[B, C]`` each, concatenated."""
        channels = x.size.row
        out = Value(Size(sample=channels * len(kinds)))
        numbers = [("token", "max", "sum", "mean").index(kind) for kind in kinds]
        for place, kind in enumerate(numbers):
            self.emit_forward(kernels.read_out, x, self.lengths, out, kind, place, len(kinds), N, channels)
        if "max" in kinds:
            self.keep(x)

        def emit(gradient_target: Value) -> None:
            self.emit_backward(kernels.zero, gradient_target, N, channels)
            for place, kind in enumerate(numbers):
                operands = x if "max" in kinds else 0, self.lengths, self.gradient(out), gradient_target
                self.emit_backward(kernels.read_out_gradient, *operands, kind, place, len(kinds), N, channels)

        self.on_backward(lambda: self.accumulate_gradient(x, emit))
        return out

    # --- operations of all blocks --------------------------------------------------------

    def linear(self, x: Value, module: nn.Linear) -> Value:
        """Trace ``x W^T + b``."""
        if type(module) is not nn.Linear:
            raise NotTraceable
        inputs, outputs = module.in_features, module.out_features
        (weight, grad_weight), (bias, grad_bias) = (self.parameter(module, name) for name in ("weight", "bias"))
        out = Value(Size(row=outputs))
        self.emit_forward(kernels.linear, x, self.transposed(module, "weight"), bias, out, N, inputs, outputs)
        self.keep(x)

        def on_backward() -> None:
            grad_x, start = self.gradient_target(x)
            gradients = self.gradient(out), grad_x, grad_weight, grad_bias, start
            self.emit_backward(kernels.linear_gradients, x, weight, *gradients, N, inputs, outputs)

        self.on_backward(on_backward)
        return out

    def add_norm(self, x: Value, y: Value | None, module: nn.LayerNorm, p: float) -> tuple[Value, Value]:
        """Trace ``x + dropout(y)`` and its layer norm; None for y is 0."""
        channels = x.size.row
        (weight, grad_weight), (bias, grad_bias) = (self.parameter(module, name) for name in ("weight", "bias"))
        if y is None:
            p, branch = 0.0, self.new_value_like(x)
            self.emit_forward(kernels.zero, branch, N, channels)
        else:
            branch = y
        total, normed, moments = self.new_value_like(x), self.new_value_like(x), Value(Size(row=2))
        keys = self.keys(p, x.size)
        eps = float_bits(module.eps)
        self.emit_forward(kernels.add_norm, x, branch, weight, bias, total, normed, moments, N, channels, eps, *keys)
        self.keep(total, moments)

        def on_backward() -> None:
            if total not in self._gradients:
                self._gradients[total] = self.new_value_like(total)
                self.emit_backward(kernels.zero, self._gradients[total], N, channels)
            upstream = self.gradient(total), self.gradient(normed)

            def emit(grad_x: Value) -> None:
                grad_y = self.new_value_like(x) if p else grad_x
                operands = total, weight, grad_x, grad_y, moments, grad_weight, grad_bias, N, channels
                self.emit_backward(kernels.add_norm_gradients, *upstream, *operands, *keys)
                if y is not None:
                    self.share_gradient(y, grad_y)

            self.accumulate_gradient(x, emit)

        self.on_backward(on_backward)
        return total, normed

    def add(self, a: Value, b: Value) -> Value:
        """Trace ``a + b``."""
        out = self.new_value_like(a)
        self.emit_forward(kernels.add, a, b, out, N, a.size.row)

        def on_backward() -> None:
            self.share_gradient(a, self.gradient(out))
            self.share_gradient(b, self.gradient(out))

        self.on_backward(on_backward)
        return out

    def dropout(self, x: Value, p: float) -> Value:
        """Trace ``dropout(x)``."""
        if not p:
            return x
        out, keys, channels = self.new_value_like(x), self.keys(p, x.size), x.size.row
        self.emit_forward(kernels.drop, x, out, N, channels, *keys)
        self.on_backward(
            lambda: self.accumulate_gradient(
                x,
                lambda gradient_target: self.emit_backward(
                    kernels.drop, self.gradient(out), gradient_target, N, channels, *keys
                ),
            )
        )
        return out

    def gelu(self, x: Value) -> Value:
        """Trace ``GELU(x)``."""
        out, channels = self.new_value_like(x), x.size.row
        self.emit_forward(kernels.gelu_forward, x, out, N, channels)
        self.keep(x)
        self.on_backward(
            lambda: self.accumulate_gradient(
                x,
                lambda gradient_target: self.emit_backward(
                    kernels.gelu_gradient, x, self.gradient(out), gradient_target, N, channels
                ),
            )
        )
        return out

    def bond_messages(self, x: Value, types: nn.Embedding, rings: nn.Embedding) -> Value:
        """Trace :func:`graphslice.ops.bond_messages`."""
        out, channels, count = self.new_value_like(x), x.size.row, types.num_embeddings
        (by_type, grad_types), (by_ring, grad_rings) = (self.parameter(table, "weight") for table in (types, rings))
        self.emit_forward(kernels.bond_messages, x, self.bonds, by_type, by_ring, out, count, N, channels)
        self.keep(x)

        def emit(gradient_target: Value) -> None:
            operands = x, self.bonds, by_type, by_ring, self.gradient(out), gradient_target, grad_types, grad_rings
            self.emit_backward(kernels.bond_messages_gradient, *operands, count, N, channels)

        self.on_backward(lambda: self.accumulate_gradient(x, emit))
        return out

    # --- operations of mixers --------------------------------------------------------------------------------

    def aggregate(self, v: Value, p: float) -> Value:
        """Trace ``dropout(P) V``; P is the graph input."""
        out, keys, channels = self.new_value_like(v), self.keys(p, self.graph.size), v.size.row
        self.emit_forward(mixer_kernels.aggregate, self.graph, v, out, self.heads, N, channels, *keys)
        self.keep(v)

        def emit(grads: list[Value]) -> None:
            operands = self.graph, v, self.gradient(out)
            self.emit_backward(mixer_kernels.aggregate_gradient, *operands, *grads, self.heads, N, channels, *keys)

        self.on_backward(lambda: self.accumulate_gradients([v, self.graph], emit))
        return out

    def broadcast_max(self, v: Value, local_channels: Tensor) -> Value:
        """Trace :func:`graphslice.ops.broadcast_max`."""
        out, maxima, channels = self.new_value_like(v), Value(Size(sample=v.size.row)), v.size.row
        local = self.hold_constant(local_channels.float())
        self.emit_forward(mixer_kernels.broadcast_max, v, self.lengths, local, out, maxima, N, channels)
        self.keep(v, maxima)

        def emit(gradient_target: Value) -> None:
            operands = v, self.lengths, local, maxima, self.gradient(out), gradient_target, N, channels
            self.emit_backward(mixer_kernels.broadcast_max_gradient, *operands)

        self.on_backward(lambda: self.accumulate_gradient(v, emit))
        return out

    def max_exchange(self, v: Value) -> Value:
        """Trace :func:`graphslice.ops.max_exchange`."""
        out, weights, channels = self.new_value_like(v), self.new_value_like(v), v.size.row
        self.emit_forward(mixer_kernels.max_exchange, v, self.lengths, out, weights, N, channels)
        self.keep(weights)

        def emit(gradient_target: Value) -> None:
            self.emit_backward(
                mixer_kernels.max_exchange_gradient, weights, self.gradient(out), gradient_target, N, channels
            )

        self.on_backward(lambda: self.accumulate_gradient(v, emit))
        return out

    def column_sort(self, x: Value, descending: Tensor | None = None) -> Value:
        """Trace :func:`graphslice.ops.column_sort` for at most 256 rows; ``descending`` is bool ``[C]``."""
        out, channels = self.new_value_like(x), x.size.row
        rows: Value | int = Value(Size(row=channels // 4)) if self.backward else 0  # a byte each
        flip = torch.zeros(channels, dtype=torch.int32) if descending is None else -descending.int()
        self.emit_forward(mixer_kernels.column_sort, x, self.lengths, self.hold_constant(flip), out, rows, N, channels)
        if isinstance(rows, Value):
            self.keep(rows)

        def emit(gradient_target: Value) -> None:
            self.emit_backward(
                mixer_kernels.column_sort_gradient, self.gradient(out), rows, gradient_target, N, channels
            )

        self.on_backward(lambda: self.accumulate_gradient(x, emit))
        return out

    def sort_by_first(self, v: Value, tie: float) -> Value:
        """Trace the sort of every channel by the ranks of the first, for at most 256 rows; ties share their mean."""
        ordered, out, channels = self.new_value_like(v), self.new_value_like(v), v.size.row
        rows = Value(Size(row=channels // 4))  # a byte each
        share = float_bits(tie)
        self.emit_forward(mixer_kernels.sort_by_first, v, self.lengths, ordered, rows, out, share, N, channels)
        self.keep(v, rows)

        def emit(gradient_target: Value) -> None:
            operands = v, self.lengths, rows, self.gradient(out), gradient_target, share, N, channels
            self.emit_backward(mixer_kernels.sort_by_first_gradient, *operands)

        self.on_backward(lambda: self.accumulate_gradient(v, emit))
        return out

    def attention(self, q: Value, k: Value, v: Value, p: float) -> Value:
        """Trace ``dropout(Softmax(Q K^T / sqrt(d) + bias)) V``; the bias is the graph input."""
        out, weights, channels = self.new_value_like(v), self.new_value_like(self.graph), v.size.row
        keys = self.keys(p, self.graph.size)
        self.emit_forward(mixer_kernels.attention, q, k, v, self.graph, weights, out, self.heads, N, channels, *keys)
        self.keep(q, k, v, weights)

        def emit(grads: list[Value]) -> None:
            operands = q, k, v, weights, self.gradient(out)
            self.emit_backward(mixer_kernels.attention_gradient, *operands, *grads, self.heads, N, channels, *keys)

        self.on_backward(lambda: self.accumulate_gradients([q, k, v, self.graph], emit))
        return out

    def linear_attention(self, q: Value, k: Value, v: Value) -> Value:
        """Trace ``Q (K^T V) / n``."""
        out, channels = self.new_value_like(v), v.size.row
        self.emit_forward(mixer_kernels.linear_attention, q, k, v, self.lengths, out, self.heads, N, channels)
        self.keep(q, k, v)

        def emit(grads: list[Value]) -> None:
            operands = q, k, v, self.lengths, self.gradient(out)
            self.emit_backward(mixer_kernels.linear_attention_gradient, *operands, *grads, self.heads, N, channels)

        self.on_backward(lambda: self.accumulate_gradients([q, k, v], emit))
        return out

    def head_norm(self, x: Value, module: nn.Module, which: int) -> Value:
        """Trace the layer norm of each head, with entry ``which`` of the ``scales`` and ``shifts`` of a module."""
        out, channels = self.new_value_like(x), x.size.row
        (scales, grad_scales), (shifts, grad_shifts) = (self.parameter(module, name) for name in ("scales", "shifts"))
        self.emit_forward(mixer_kernels.head_norm, x, scales, shifts, out, which, self.heads, N, channels)
        self.keep(x)

        def emit(gradient_target: Value) -> None:
            operands = (
                x,
                scales,
                self.gradient(out),
                gradient_target,
                grad_scales,
                grad_shifts,
                which,
                self.heads,
                N,
                channels,
            )
            self.emit_backward(mixer_kernels.head_norm_gradient, *operands)

        self.on_backward(lambda: self.accumulate_gradient(x, emit))
        return out
