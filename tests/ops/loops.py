"""Comparison of the backends for a CPU with a loop."""

import torch

from graphslice.doctor.checks import is_float


def check_backends(op, args, expected, upstream, *, has_kernel, valid=None, gradients=True, rtol=1e-4, atol=1e-4):
    """Compare the result of every backend, 0 outside of ``valid``, and the gradients of the floating-point arguments
    with those of ``expected``, which a loop computed from the same arguments."""
    assert op.choose(*args) == ("numba" if has_kernel else "torch")
    leaves, unused = [arg for arg in args if is_float(arg)], {"allow_unused": True, "materialize_grads": True}
    expected_grads = torch.autograd.grad(expected, leaves, upstream.to(expected.dtype), retain_graph=True, **unused)
    for backend in ["torch", "numba"] if has_kernel else ["torch"]:
        actual = op.using(backend)(*args)
        actual = actual if valid is None else actual.masked_fill(~valid, 0)
        torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)
        grads = torch.autograd.grad(actual, leaves, upstream.to(actual.dtype), **unused)
        for one, other in zip(grads, expected_grads, strict=True):
            if gradients:
                torch.testing.assert_close(one.double(), other.double(), rtol=rtol, atol=atol)
